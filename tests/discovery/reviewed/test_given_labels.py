"""Labels for the discovery after a review: only those that the review changed differ."""

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.discovery.discovered_run import DiscoveredRun
from shoal.discovery.reviewed.refinement import Refinement
from shoal.errors import UsageError
from shoal.review.actions import Action
from shoal.review.state import State
from small_runs import write_small

KNOWN = ("american_bulldog", "pug")


def reviewable(folder: Path, **options: object) -> DiscoveredRun:
    """A small run whose images are recorded as files in a folder."""
    run = write_small(folder / "run", **options)  # type: ignore[arg-type]
    run.note(fingerprint="of the images", root=str(folder))
    return shoal.load(run.path)


def bulldogs(folder: Path, labeled: tuple[int, ...] = (0, 1)) -> DiscoveredRun:
    """Three bulldogs and five boxers in one known category, and two pugs."""
    ids = (0, 0, 0, 0, 0, 0, 0, 0, 1, 1)
    kinds = (0, 0, 0, 2, 2, 2, 2, 2, 1, 1)
    return reviewable(folder, ids=ids, kinds=kinds, names=KNOWN, labeled=(*labeled, 8))


def labels_after(run: DiscoveredRun) -> dict[str, str]:
    """Return the labels of the next discovery; "" for unlabeled."""
    refinement = Refinement.open(run.path)
    collection = refinement.collection(refinement.images())
    names = [*collection.classes, ""]
    return {
        path: names[label]
        for path, label in zip(collection.names, collection.labels.tolist(), strict=True)
    }


def labels_before(run: DiscoveredRun) -> dict[str, str]:
    state = run.review.state
    return dict(zip(state.paths, state.columns["label_given"], strict=True))


def members(run: DiscoveredRun, category: str) -> list[int]:
    found = run.review.state.find(category)
    assert found is not None
    return run.review.state.members(found).tolist()


def test_the_part_with_the_labels_keeps_the_category(tmp_path: Path) -> None:
    run = bulldogs(tmp_path)
    run.split("american_bulldog", 2)
    assert members(run, "american_bulldog") == [0, 1, 2]
    assert members(run, "american_bulldog (2)") == [3, 4, 5, 6, 7]
    rows = {row.category: row for row in run.categories}
    assert rows["american_bulldog"].category_id == 0
    assert not rows["american_bulldog"].is_novel
    assert rows["american_bulldog (2)"].is_novel
    assert labels_after(run) == labels_before(run)


def test_the_part_with_more_labels_keeps_the_category_and_a_warning_counts_the_others(
    tmp_path: Path,
) -> None:
    run = bulldogs(tmp_path, labeled=(0, 1, 7))
    with pytest.warns(UserWarning, match="1 image"):
        run.split("american_bulldog", 2)
    assert members(run, "american_bulldog") == [0, 1, 2]
    assert labels_after(run) == labels_before(run)
    run.confirm(images=["07.png"])
    assert labels_after(run) == labels_before(run) | {"07.png": "american_bulldog (2)"}


def test_on_ties_in_labels_the_larger_part_keeps_the_category(tmp_path: Path) -> None:
    run = bulldogs(tmp_path, labeled=(0, 7))
    with pytest.warns(UserWarning, match="1 image"):
        run.split("american_bulldog", 2)
    assert members(run, "american_bulldog") == [3, 4, 5, 6, 7]
    run.split("american_bulldog (2)", {"x": ["01.png"]})
    assert members(run, "american_bulldog (2)") == [0, 2]


def test_changed_labels_are_listed(tmp_path: Path) -> None:
    run = bulldogs(tmp_path)
    run.reject(["00.png"])
    run.move(["01.png"], "boxer")
    run.rename("pug", "mops")
    refinement = Refinement.open(run.path)
    assert refinement.changed_labels(labels_after(run)) == [
        {"path": "00.png", "given": "american_bulldog", "now": ""},
        {"path": "01.png", "given": "american_bulldog", "now": "boxer"},
    ]
    assert refinement.changed_labels({"08.png": "mops"}) == []


def act(run: DiscoveredRun, rng: random.Random) -> None:
    """Try a random action; refused ones have no effect."""
    names = [row.category for row in run.categories]
    some = rng.sample([row.path for row in run.assignments], rng.randint(1, 3))
    name = rng.choice(names)
    new = f"new {rng.randint(0, 5)}"
    verbs = {
        "confirm": lambda: run.confirm(images=some),
        "confirm all": lambda: run.confirm(name),
        "reject": lambda: run.reject(some),
        "flag": lambda: run.flag(some),
        "move": lambda: run.move(some, rng.choice([name, new])),
        "rename": lambda: run.rename(name, new),
        "merge": lambda: run.merge([name, rng.choice(names)]),
        "split": lambda: run.split(name, rng.randint(2, 3)),
        "split off": lambda: run.split(name, {new: some}),
        "undo": run.undo,
        "redo": run.redo,
    }
    # Actions on whole categories are twice as likely.
    kinds = [*verbs, "rename", "merge", "split", "split off"]
    with contextlib.suppress(UsageError):
        verbs[rng.choice(kinds)]()


def decisions(state: State) -> list[Action]:
    """Return the effective actions on single images."""
    kinds = ("confirm", "reject", "assign", "create")
    return [
        action
        for action in state.actions
        if action.kind in kinds and action.seq not in state.undone
    ]


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_only_labels_changed_in_the_review_differ(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("labels")
    ids = (0,) * 8 + (1,) * 6 + (2,) * 4
    kinds = (0, 0, 0, 0, 3, 3, 3, 4, 1, 1, 1, 5, 5, 5, 2, 2, 6, 6)
    labeled = rng.sample(range(14), 7)
    run = reviewable(folder, ids=ids, kinds=kinds, names=(*KNOWN, "novel-001"), labeled=[*labeled])
    run.flag(["00.png"])
    for _ in range(rng.randint(1, 12)):
        act(run, rng)
    after = labels_after(run)
    state = run.review.state
    differing = []
    for path, label in labels_before(run).items():
        if not label:
            continue
        number = state.current(KNOWN.index(label))
        name = state.records[number].name
        if after[path] != name:
            differing.append({"path": path, "given": name, "now": after[path]})
        row = state.row_of[path]
        agree = {
            action.kind != "reject" and state.current(group.category) == number
            for action in decisions(state)
            for group in action.groups
            if row in group.rows
        }
        assert after[path] == name or False in agree, (path, name, after[path])
    assert Refinement.open(run.path).changed_labels(after) == differing
