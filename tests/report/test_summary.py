from collections.abc import Callable
from dataclasses import replace

from shoal.report.certainty import confidence_words, how_sure
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
    found = summarize(Snapshot(digits))
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


def test_how_sure_k_is_comes_from_the_curve(plain_run: Callable[..., Run]) -> None:
    """Of 2 … 6, the accuracies of 3 and 4 lie within a point of the best."""
    run = plain_run(images("a"))
    assert how_sure(Snapshot(run)) == ""
    curve = {"n_clusters": [2, 3, 4, 5, 6], "accuracy": [0.5, 0.895, 0.9, 0.88, 0.7]}
    run.write_json(
        "estimate",
        {"n_clusters": 4, "rule": "best", "is_given": False, "curve": curve},
    )
    assert how_sure(Snapshot(run)) == (
        "The number of categories, 4, was estimated. "
        "Of 5 numbers tried, 3 to 4 fit the labeled images within a point of the best."
    )
    alone = {"n_clusters": [2, 3], "accuracy": [0.5, 0.9]}
    run.write_json("estimate", {"n_clusters": 4, "is_given": False, "curve": alone})
    assert how_sure(Snapshot(run)).endswith(
        "Of 2 numbers tried, the number 3 fits the labeled images within a point of the best. "
        "The estimate is not among them, because it also weighs unlabeled images."
    )
    for interval, end in ([3, 6], "."), ([2, 9], ": the labels hardly say how many."):
        found = {
            "n_clusters": 4,
            "is_given": False,
            "interval": interval,
            "curve": alone,
        }
        run.write_json("estimate", found)
        assert how_sure(Snapshot(run)) == (
            "The number of categories, 4, was estimated. "
            f"{interval[0]} to {interval[1]} are likely, with a chance of 80 % if new ones are as large as known{end}"
        )
    run.write_json("estimate", {"n_clusters": 4, "is_given": True})
    assert how_sure(Snapshot(run)) == "The number of categories, 4, was given."


def test_that_k_rests_on_few_known_categories_is_said(plain_run: Callable[..., Run]) -> None:
    rows = [replace(row, label_given="a") for row in images(*"aaaaa")]
    run = plain_run(rows)
    run.write_json("estimate", {"n_clusters": 4, "is_given": False, "interval": [3, 6]})
    assert how_sure(Snapshot(run)).endswith(
        "The number of categories rests on 1 known category; give --n-clusters or label images of others."
    )


def test_small_numbers_read_well(plain_run: Callable[..., Run]) -> None:
    found = summarize(Snapshot(plain_run(images("novel-1"))))
    assert found.headline == "1 category in 1 image"
    assert found.sentences == (
        "1 category is likely new.",
        "Every image has a confidence of at least 0.5.",
    )
    assert found.accuracy == ()


def test_one_known_category_reads_well(plain_run: Callable[..., Run]) -> None:
    assert (
        summarize(Snapshot(plain_run(images("a")))).sentences[0]
        == "1 category was known from labels."
    )


def test_a_truth_without_novel_images_leaves_a_dash(plain_run: Callable[..., Run]) -> None:
    run = plain_run(images("a"))
    run.write_json(
        "accuracy", {"all": 0.5, "known": 0.5, "novel": float("nan"), "n_images": 2, "n_classes": 1}
    )
    found = summarize(Snapshot(run))
    assert [tile.value for tile in found.accuracy] == ["50.0 %", "50.0 %", "–"]
    assert found.accuracy_note == "Accuracy against the given truth, 2 images of 1 class"


def test_training_that_did_not_help_is_said(plain_run: Callable[..., Run]) -> None:
    run = plain_run(images("a"))
    found = {
        "kept": "frozen",
        "accuracy": {"frozen": 0.75, "trained": 0.5},
        "n_images": 1200,
        "hidden": ["a"],
    }
    run.write_json("choice", found)
    said = summarize(Snapshot(run)).sentences[-1]
    for part in ("1,200", "75.0 %", "50.0 %", "frozen"):
        assert part in said


def test_the_weight_of_the_encoder_as_it_came_is_said_and_where_no_label_chose_it(
    plain_run: Callable[..., Run],
) -> None:
    run = plain_run(images("a"))
    run.write_json("model", {"frozen_weight": 0.65, "n_tail_blocks": 1, "shape": None})
    said = "The encoder as it came weighs 65 % beside the trained one"
    unjudged = f"{said}, as was best on average with cms, because no label can judge training."
    assert summarize(Snapshot(run)).sentences[-1] == unjudged
    judged = {
        "kept": "trained",
        "accuracy": {"frozen": 0.5, "trained": 0.75},
        "n_images": 8,
        "hidden": ["a"],
    }
    run.write_json("choice", judged)
    assert summarize(Snapshot(run)).sentences[-1] == f"{said}."
    run.write_json("model", {"frozen_weight": 0.0, "n_tail_blocks": 1, "shape": None})
    assert "weighs" not in summarize(Snapshot(run)).sentences[-1]


def test_average_linkage_is_said_and_ward_is_not(plain_run: Callable[..., Run]) -> None:
    run = plain_run(images("a"))
    about = {"accuracies": [1.0], "chosen": 0, "n_neighbors": 8, "alpha": 0.5}
    run.write_json("shifts", about | {"linkage_method": "ward"})
    assert "linkage" not in " ".join(summarize(Snapshot(run)).sentences)
    run.write_json("shifts", about | {"linkage_method": "average"})
    assert (
        summarize(Snapshot(run))
        .sentences[-1]
        .startswith("Clusters are joined by average linkage: it puts more of")
    )


def test_a_training_that_was_stopped_is_said_and_which_of_two(
    plain_run: Callable[..., Run],
) -> None:
    run = plain_run(images("a"))
    run.note(stopped_early={"epochs": 1, "of": 2})
    write_rows(run, 1)
    found = summarize(Snapshot(run))
    assert (
        found.sentences[-1]
        == "Training was stopped after 1 of 2 epochs. The answer is the one without training."
    )
    run.write_json("model", {"frozen_weight": 0.0, "n_tail_blocks": 1, "shape": None})
    assert summarize(Snapshot(run)).sentences[-1] == "Training was stopped after 1 of 2 epochs."
    assert dict(found.facts)["Trained for"] == "1 epoch; stopped early, 2 were planned"
    write_rows(run, 2)  # the answer is of a trial that came to its end
    assert summarize(Snapshot(run)).sentences[-1] == "Training was stopped after 1 of 2 epochs.", (
        "another trial"
    )
    run.note(trial_epochs=2)
    found = summarize(Snapshot(run))
    assert (
        found.sentences[-1] == "Training again, with all labels, was stopped after 1 of 2 epochs."
    )
    assert (
        dict(found.facts)["Trained for"]
        == "2 epochs; training again, with all labels, was stopped early"
    )
    write_rows(run, 0)  # the first answer stands, after a trial that came to its end
    run.note(trial_epochs=8)
    found = summarize(Snapshot(run))
    assert (
        found.sentences[-1] == "Training again, with all labels, was stopped after 1 of 2 epochs."
    )
    assert (
        dict(found.facts)["Trained for"]
        == "8 epochs; training again, with all labels, was stopped early"
    )
    write_rows(run, 2)
    run.note(stopped_early=None, trial_epochs=5)
    assert dict(summarize(Snapshot(run)).facts)["Trained for"] == (
        "5 epochs with some labels kept from it, then 2 epochs with all"
    )


def test_confidence_that_labels_could_not_check_is_said_to_be_the_share(
    plain_run: Callable[..., Run],
) -> None:
    run = plain_run(images("a"))
    assert confidence_words(Snapshot(run)) == ""
    curve = {"confidence": [0, 1], "right": [0, 3], "n_images": [0, 4]}
    found = {
        "label_rate": None,
        "known": curve,
        "novel": curve,
        "labeled": curve,
        "scale": [1],
        "weight": 1,
    }
    run.write_json("calibration", found | {"is_calibrated": False})
    assert "0.95" in confidence_words(Snapshot(run))
    assert any(
        line.endswith("Labels cannot say how far confidence can be trusted.")
        for line in _sentences(run)
    )
    run.write_json("calibration", found | {"is_calibrated": True, "label_rate": 0.5})
    assert "about nine in ten should be right" in confidence_words(Snapshot(run))
    assert "4 images in known categories" in confidence_words(Snapshot(run))
    many = {"confidence": [0, 1], "right": [0, 30], "n_images": [0, 40]}
    found |= {"is_calibrated": True, "label_rate": 0.5, "novel": many, "labeled": many}
    run.write_json("calibration", found | {"is_of_first": True})
    assert "40 images in known categories" in confidence_words(Snapshot(run))
    assert not any("trusted" in line for line in _sentences(run))


def write_rows(run: Run, n_epochs: int) -> None:
    (run.path / "metrics.jsonl").write_text(
        "".join(f'{{"epoch": {epoch + 1}}}\n' for epoch in range(n_epochs))
    )


def _sentences(run: Run) -> tuple[str, ...]:
    return summarize(Snapshot(run)).sentences
