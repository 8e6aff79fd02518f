from collections.abc import Callable

from shoal.report.snapshot import Snapshot
from shoal.report.summary import summarize
from shoal.runs import Assignment, Run


def images(*categories: str) -> list[Assignment]:
    return [
        Assignment(
            path=str(at),
            category_id=categories.index(name),
            category=name,
            is_novel=name.startswith("novel"),
            confidence=0.9,
            outlier_score=0,
        )
        for at, name in enumerate(categories)
    ]


def test_a_whole_run_in_words(digits: Run) -> None:
    found = summarize(Snapshot.of(digits))
    n = len(digits.categories)
    assert found.headline == f"{n} categories in 1,797 images"
    assert found.sentences[0] == f"6 categories were known from labels; {n - 6} are likely new."
    assert "1 file could not be read" in found.sentences[-1]
    assert [tile.label for tile in found.tiles] == ["images", "labeled", "known", "novel", "unsure"]
    assert [tile.label for tile in found.accuracy] == ["All", "Known", "Novel"]
    assert found.accuracy[0].value == f"{100 * digits.json('accuracy')['all']:.1f} %"
    facts = dict(found.facts)
    assert facts["Encoder"] == "pixels"
    assert facts["Trained for"] == "8 epochs"
    assert facts["Seed"] == "7"
    assert facts["Time"] == "2 min 05 s"


def test_a_truth_without_novel_images_leaves_a_dash(plain_run: Callable[..., Run]) -> None:
    run = plain_run(images("a"))
    run.write_json(
        "accuracy", {"all": 0.5, "known": 0.5, "novel": float("nan"), "n_images": 2, "n_classes": 1}
    )
    found = summarize(Snapshot.of(run))
    assert [tile.value for tile in found.accuracy] == ["50.0 %", "50.0 %", "–"]
    assert found.accuracy_note == "Accuracy against the given truth, 2 images of 1 class"
