from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import NotInRun
from shoal.report.summary import separation, suggested_merges, suspicious_labels
from shoal.review import verbs
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Category, Run


def rows(
    categories: list[str], *, given: list[str] | None = None, second: str = ""
) -> list[Assignment]:
    ids = {name: at for at, name in enumerate(dict.fromkeys(categories))}
    return [
        Assignment(
            path=str(at),
            label_given=given[at] if given else "",
            category_id=ids[name],
            category=name,
            is_novel=name.startswith("novel"),
            confidence=0.9 - at / 1000,
            outlier_score=0,
            second_category=second,
        )
        for at, name in enumerate(categories)
    ]


def test_separation_of_six_points_by_hand() -> None:
    """Means 0 and 4, each group spread ±1, so variance 1: √2 · 4 / √2 = 4."""
    a = np.array([[-1.0], [0], [1]])
    b = np.array([[3.0], [4], [5]])
    assert separation(a, b) == pytest.approx(4)
    assert separation(a, a) == 0
    assert separation(np.zeros((2, 1)), np.ones((2, 1))) == float("inf")


def test_a_category_cut_in_two_is_suggested_and_one_that_stands_apart_is_not(
    plain_run: Callable[..., Run],
) -> None:
    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(400, 5)) * [2, 1, 1, 1, 1]
    apart = rng.normal(size=(100, 5))
    apart[:, 2] += 12
    names = ["one" if x < -0.2 else "novel-001" for x in cloud[:, 0]] + ["novel-002"] * 100
    run = plain_run(rows(names, second="one"))
    run.write_array("embeddings", np.concatenate([cloud, apart]))
    merges = suggested_merges(ReviewedRun.of(run))
    pairs = [(merge.novel.category, merge.other.category) for merge in merges]
    assert (pairs[0], merges[0].looks_like_one) == (("novel-001", "one"), True)
    assert [merge.looks_like_one for merge in merges[1:]] == [
        False,
        False,
    ]  # the closest pairs are listed nevertheless
    gaps = [merge.separation for merge in merges]
    assert gaps == sorted(gaps)
    assert merges[0].second_choice == pytest.approx(names.count("novel-001") / 400)


def test_two_known_categories_are_never_to_be_merged(plain_run: Callable[..., Run]) -> None:
    run = plain_run(rows(["left", "right"] * 50))
    run.write_array("embeddings", np.random.default_rng(0).normal(size=(100, 3)))
    assert suggested_merges(ReviewedRun.of(run)) == []


def test_a_known_category_that_nobody_has_named_may_be_merged(
    plain_run: Callable[..., Run],
) -> None:
    """This occurs in the run after a review in which one of its images was confirmed."""
    run = plain_run([replace(row, is_novel=False) for row in rows(["left", "novel-001"] * 50)])
    run.write_array("embeddings", np.random.default_rng(0).normal(size=(100, 3)))
    (merge,) = suggested_merges(ReviewedRun.of(run))
    assert (merge.novel.category, merge.other.category) == ("novel-001", "left")


def test_a_label_is_suspicious_when_its_image_landed_elsewhere_and_the_surest_comes_first(
    plain_run: Callable[..., Run],
) -> None:
    run = plain_run(rows(["cat", "cat", "novel-1", "dog"], given=["cat", "dog", "dog", ""]))
    found = suspicious_labels(ReviewedRun.of(run))
    assert [(row, name) for row, name, _ in found] == [(1, "cat"), (2, "novel-1")]
    with pytest.raises(NotInRun):
        suspicious_labels(ReviewedRun.of(plain_run_without_labels(run)))


def test_a_label_that_binds_is_suspicious_among_images_of_another_category(
    run_of_labels: Run,
) -> None:
    found = suspicious_labels(ReviewedRun.of(run_of_labels))
    assert [(row, name) for row, name, _ in found] == [(0, "heron"), (1, "novel-1")]
    assert [certainty for *_, certainty in found] == pytest.approx([1, 0.875])


def test_a_label_that_a_person_has_decided_on_is_no_longer_suspicious(run_of_labels: Run) -> None:
    Review(Run(run_of_labels.path)).act(verbs.decide, "confirm", None, ["0"], by="ann")
    Review(Run(run_of_labels.path)).act(verbs.merge, ["gull", "novel-1"], by="ann")
    assert suspicious_labels(ReviewedRun.of(run_of_labels)) == []


@pytest.fixture
def run_of_labels(plain_run: Callable[..., Run]) -> Run:
    """All labeled images are in the category of their label; the first two lie among images of
    other categories, the third is only at the edge of its own.
    """
    table = rows(["gull"] * 4 + ["heron", "novel-1"], given=["gull"] * 4 + ["", ""], second="heron")
    facts = [
        (0.0, "heron", "heron"),
        (0.125, "heron", "novel-1"),
        (0.25, "gull", "novel-1"),
        (0.6, "heron", "heron"),
    ]
    labeled = [
        replace(row, confidence=sure, nearest_known=nearest, second_category=second)
        for row, (sure, nearest, second) in zip(table, facts, strict=False)
    ]
    run = plain_run([*labeled, *table[4:]])
    ids = {row.category: row.category_id for row in table}
    run.write_categories(
        [
            Category(
                category_id=ids[name],
                category=name,
                is_novel=name == "novel-1",
                size=1,
                n_labeled=0,
                confidence=0.5,
            )
            for name in ids
        ]
    )
    return run


def plain_run_without_labels(run: Run) -> Run:
    run.write_assignments(rows(["cat"]))
    return Run(run.path)
