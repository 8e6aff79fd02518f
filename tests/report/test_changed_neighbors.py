from collections.abc import Callable

import numpy as np
import pytest

from shoal.report import changed_neighbors as module
from shoal.report.changed_neighbors import nearest, neighbors
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.runs import Assignment, Run


def test_nearest_is_a_full_sort_without_the_image_itself() -> None:
    rng = np.random.default_rng(0)
    bank = rng.normal(size=(50, 6))
    queries = bank[[3, 7, 11]] + 0.1
    own = np.array([3, 7, 11])
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    for query, row, found in zip(
        queries, own, nearest(queries, bank, own, 5, block=2), strict=True
    ):
        order = [at for at in np.argsort(-(unit @ query)) if at != row]
        assert found.tolist() == order[:5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bank_read_in_blocks_gives_the_neighbors_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    bank = np.random.default_rng(0).normal(size=(50, 3)).astype(dtype)
    own = np.arange(0, 50, 7)
    whole = nearest(bank[own], bank, own, 6)
    for rows in (1, 3, 7, 49):
        monkeypatch.setattr(module, "BANK_ROWS", rows)
        np.testing.assert_array_equal(nearest(bank[own], bank, own, 6, block=3), whole)


def test_a_bank_in_float16_has_the_neighbors_that_its_numbers_have_in_float32() -> None:
    bank = np.random.default_rng(0).normal(size=(3000, 64)).astype(np.float16)
    own = np.arange(50)
    found = nearest(bank[own], bank, own, 8)
    np.testing.assert_array_equal(
        found, nearest(bank[own].astype(np.float32), bank.astype(np.float32), own, 8)
    )


def circle(degrees: list[float]) -> np.ndarray:
    turns = np.radians(degrees)
    return np.stack([np.cos(turns), np.sin(turns)], axis=1)


def test_the_share_of_right_neighbors_by_hand(plain_run: Callable[..., Run]) -> None:
    """Five images on a circle; 'a' at 0° and 40°, 'b' at 30°, 120° and 150°.

    The image at 40° moves to 15°: its nearest other image was 'b' at 30° and is now 'a' at 0° or 'b' at 30°, equally
    far; the query's likeness to both is cos 15°, and ties go to the smaller row. k is 4 here, all others, so the share
    does not change while the order does.
    """
    labels = ["a", "a", "b", "b", "b"]
    run = plain_run(
        [
            Assignment(
                path=str(i),
                label_given=y,
                category_id=i,
                category=y,
                is_novel=False,
                confidence=1,
                outlier_score=0,
            )
            for i, y in enumerate(labels)
        ]
    )
    run.write_array("embeddings", circle([0, 40, 30, 120, 150]))
    run.write_array("shifted", circle([0, 14, 30, 120, 150]))
    found = neighbors(Snapshot(run))
    assert found.n_queries == 5
    assert found.is_labeled
    # 5 images with 4 neighbors each; right ones: 1 + 1 + 2 + 2 + 2 of 20
    assert found.right_before == found.right_after == pytest.approx(8 / 20)


def test_the_examples_are_those_that_changed_most_one_per_category(digits: Run) -> None:
    found = neighbors(Snapshot(digits))
    categories = [digits.assignments[change.row].category_id for change in found.examples]
    assert 1 < len(set(categories)) == len(categories) <= 6
    exchanged = [len(set(change.after) - set(change.before)) for change in found.examples]
    assert exchanged == sorted(exchanged, reverse=True)
    assert all(change.row not in (*change.before, *change.after) for change in found.examples)
    assert found.right_after > found.right_before


def test_a_shift_that_moves_nothing_is_said_to(digits: Run, plain_run: Callable[..., Run]) -> None:
    run = plain_run(digits.assignments)
    with pytest.raises(NotInRun, match="does not hold both"):
        neighbors(Snapshot(run))
    for name in ("embeddings", "shifted"):
        run.write_array(name, digits.array("embeddings"))
    with pytest.raises(NotInRun, match="the shift changed none"):
        neighbors(Snapshot(run))


def test_of_many_images_fewer_are_asked(small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot(small)
    usual = neighbors(snapshot).n_queries
    monkeypatch.setattr(module, "COMPARISONS", 200 * 30)
    monkeypatch.setattr(module, "EXAMPLES", 2)
    assert 10 < neighbors(snapshot).n_queries <= 30 < usual
