"""A review is replayed on another result for the same images."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import DataError, UsageError
from shoal.review import verbs
from shoal.review.actions import STATUSES, UNREADABLE, Action, Group
from shoal.review.replay import replay_review
from shoal.review.review import OtherResult, Review
from shoal.runs import NO_CATEGORY, Run
from small_runs import NAMES, write_small


def actions(problems: list[str]) -> list[int]:
    """Return the numbers of the actions that could not be applied completely."""
    return [int(re.search(r"\(action (\d+)\)", problem)[1]) for problem in problems]


def reviewed(run: Run) -> Review:
    review = Review(run)
    review.act(verbs.rename, "novel-001", "tern", by="ann")
    review.act(verbs.decide, "confirm", "tern", None, by="ann")
    review.act(verbs.decide, "reject", None, ["02.png"], by="bob")
    review.act(verbs.move, ["09.png"], "skua", by="bob")
    review.act(verbs.rename, "novel-002", "never mind", by="bob")
    review.undo(by="bob")
    return review


def names(review: Review) -> dict[str, list[int]]:
    return {
        record.name: review.state.members(c).tolist()
        for c, record in review.state.categories.items()
    }


def test_onto_the_same_answer_everything_fits(run: Run, tmp_path: Path) -> None:
    before = reviewed(run)
    other = write_small(tmp_path / "other")
    entries, problems = replay_review(run.path, other, by="ann")
    assert problems == []
    assert [(entry.by, entry.kind) for entry in entries] == [
        ("ann", "rename"),
        ("ann", "confirm"),
        ("bob", "reject"),
        ("bob", "create"),
        ("bob", "assign"),
    ]
    after = Review(other)
    assert names(after) == names(before)
    assert after.state.status.tolist() == before.state.status.tolist()
    assert entries[0].at == before.state.actions[0].at


def test_of_a_batch_what_fits_is_applied(run: Run, tmp_path: Path) -> None:
    names_given = {2: "tern", 3: "skua"}
    renames = [Action(kind="rename", category=c, name=name) for c, name in names_given.items()]
    Review(run).act(lambda _: Action(kind="batch", actions=tuple(renames)), by="ann")
    other = write_small(
        tmp_path / "other", ids=(0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2), names=NAMES[:3]
    )
    entries, problems = replay_review(run.path, other, by="bob")
    assert [(entry.kind, entry.by, entry.name) for entry in entries] == [("rename", "ann", "tern")]
    assert problems == ["batch by ann (action 1): no category of this run matches skua"]


def test_categories_are_found_again_and_the_word_of_a_person_holds(
    run: Run, tmp_path: Path
) -> None:
    """The other result swaps the ids of the novel categories and has two images in other
    categories."""
    reviewed(run)
    other = write_small(tmp_path / "other", ids=(0, 0, 1, 1, 1, 1, 3, 3, 0, 2, 2, 2))
    _, problems = replay_review(run.path, other, by="ann")
    after = Review(other)
    assert names(after) == {
        "gull": [0, 1],
        "heron": [2, 3, 4, 5],  # 02.png was rejected from gull, and is not in gull here
        "novel-001": [10, 11],
        "tern": [6, 7, 8],
        "skua": [9],
    }
    assert [STATUSES[s] for s in after.state.status[6:10]] == ["confirmed"] * 3 + ["moved"]
    assert problems == ["reject by bob (action 3): 1 image not in gull in this run"]


def test_what_no_longer_fits_is_listed(run: Run, tmp_path: Path) -> None:
    review = Review(run)
    review.act(verbs.rename, "novel-002", "tern", by="ann")
    review.act(verbs.decide, "confirm", "heron", None, by="bob")
    other = write_small(
        tmp_path / "other", ids=(0, 0, 0, 1, 1, 0, 2, 2, 2), names=("gull", "heron", "skua")
    )
    _, problems = replay_review(run.path, other, by="ann")
    assert problems == ["rename by ann (action 1): no category of this run matches tern"]
    review.act(verbs.decide, "confirm", "tern", None, by="bob")
    smaller = write_small(tmp_path / "smaller", ids=(0, 0, 0, 1, 1))
    _, problems = replay_review(run.path, smaller, by="ann")
    assert actions(problems) == [1, 2, 3]


def test_of_a_decision_about_several_categories_one_that_is_gone_takes_no_other_with_it(
    run: Run, tmp_path: Path
) -> None:
    review = Review(run)
    review.act(verbs.decide, "confirm", None, ["00.png", "09.png", "10.png", "06.png"], by="ann")
    other = write_small(
        tmp_path / "other",
        ids=(0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2),
        names=("gull", "heron", "tern"),
    )
    _, problems = replay_review(run.path, other, by="ann")
    assert problems == ["confirm by ann (action 1): no category of this run matches novel-002"]
    review.act(verbs.decide, "reject", None, ["03.png", "07.png", "11.png"], by="ann")
    another = write_small(tmp_path / "another", ids=(0, 0, 0, 0, 1, 1, 2, 1, 2, 3, 3, 3))
    _, problems = replay_review(run.path, another, by="ann")
    assert actions(problems) == [2]
    assert statuses(Review(another))[11] == "rejected"


def test_a_run_made_anew_in_its_folder_takes_its_own_review_over(run: Run) -> None:
    reviewed(run)
    old = (run.path / "review.jsonl").read_bytes()
    assert Run.create(run.path, force=True).has("review.jsonl")
    again = write_small(run.path, ids=(0, 0, 1, 1, 1, 1, 3, 3, 0, 2, 2, 2))
    with pytest.raises(OtherResult):
        Review(again)
    replay_review(again.path, again, by="ann")
    assert names(Review(again))["tern"] == [6, 7, 8]
    assert (run.path / "review-1.jsonl").read_bytes() == old


def test_notes_are_replayed(run: Run, tmp_path: Path) -> None:
    review = Review(run)
    group = Group(category=NO_CATEGORY, rows=np.array([3, 4]))
    noted = Action(kind="note", category=NO_CATEGORY, groups=(group,), text="#blurred")
    review.act(lambda _: noted)
    review.act(lambda _: Action(kind="note", category=1, text="ask ann"))
    other = write_small(tmp_path / "other")
    assert replay_review(run.path, other, by="ann")[1] == []
    after = Review(other).state
    assert after.notes == {3: "#blurred", 4: "#blurred"}
    assert after.categories[1].note == "ask ann"


def test_a_review_is_not_replaced_by_another(run: Run, tmp_path: Path) -> None:
    reviewed(run)
    other = write_small(tmp_path / "other")
    with pytest.raises(UsageError):
        replay_review(other.path, run, by="ann")
    Review(other).act(verbs.rename, "gull", "x")
    with pytest.raises(UsageError):
        replay_review(run.path, other, by="ann")


def test_an_answer_that_kept_ids_and_names_is_not_named_made_or_merged_again(
    run: Run, tmp_path: Path
) -> None:
    """Names passed from one category to another, so that replaying the renames one by one would
    find them taken. The other result has all final names."""
    review = Review(run)
    review.act(verbs.rename, "novel-001", "tern", by="ann")
    review.act(verbs.rename, "tern", "skua", by="ann")
    review.act(verbs.rename, "novel-002", "tern", by="ann")
    review.act(verbs.move, ["00.png"], "auk", by="bob")
    review.act(verbs.rename, "auk", "puffin", by="bob")
    review.act(verbs.decide, "confirm", "skua", None, by="bob")
    review.act(verbs.decide, "reject", None, ["09.png"], by="bob")
    review.act(verbs.merge, ["gull", "heron"], by="bob")
    ids = (
        4,
        0,
        0,
        0,
        0,
        0,
        2,
        2,
        0,
        2,
        3,
        3,
    )  # 08.png (confirmed) and 09.png (rejected) are in other categories
    other = write_small(
        tmp_path / "other", ids=ids, names=("gull", "none", "skua", "tern", "puffin")
    )
    entries, problems = replay_review(run.path, other, by="ann", ids={0: 0, 1: 0, 2: 2, 3: 3, 4: 4})
    assert problems == []
    assert [entry.kind for entry in entries] == ["assign", "assign", "confirm"]
    after = Review(other)
    assert {**names(after), "none": []} == {
        "gull": [1, 2, 3, 4, 5],
        "none": [],
        "skua": [6, 7, 8, 9],
        "tern": [10, 11],
        "puffin": [0],
    }
    statuses = [STATUSES[status] for status in after.state.status]
    assert [statuses[row] for row in (0, 6, 7, 8, 9)] == [
        "moved",
        "confirmed",
        "confirmed",
        "confirmed",
        "predicted",
    ]


def statuses(review: Review) -> list[str]:
    return [STATUSES[status] for status in review.state.status]


def test_a_split_decides_about_no_image(run: Run, tmp_path: Path) -> None:
    review = Review(run)
    review.act(verbs.split, "gull", {"herring gull": ["01.png", "02.png"]}, by="ann")
    other = write_small(tmp_path / "other", ids=(0, 0, 3, 1, 1, 1, 2, 2, 2, 3, 3, 3))
    entries, problems = replay_review(run.path, other, by="ann")
    assert [entry.kind for entry in entries] == ["split"]
    assert actions(problems) == [1]
    after = Review(other)
    assert names(after)["herring gull"] == [
        1
    ]  # the other result has 02.png in another category, and a split does not decide about images
    assert set(statuses(after)) == {"predicted"}


def test_of_a_split_that_the_answer_has_made_by_itself_decided_images_follow_as_they_are(
    run: Run, tmp_path: Path
) -> None:
    """An image that one person confirmed and another then split off stays confirmed, in the
    category that the split created."""
    review = Review(run)
    review.act(verbs.decide, "confirm", None, ["02.png"], by="bob")
    review.act(verbs.split, "gull", {"herring gull": ["01.png", "02.png"]}, by="ann")
    other = write_small(
        tmp_path / "other", ids=(0, 0, 4, 1, 1, 1, 2, 2, 2, 3, 3, 3), names=(*names(review),)
    )
    _, problems = replay_review(
        run.path, other, by="ann", ids={number: number for number in range(5)}
    )
    after = Review(other)
    assert problems == []
    assert names(after) == {**names(review), "gull": [0, 1], "herring gull": [2]}
    assert statuses(after) == [*["predicted"] * 2, "confirmed", *["predicted"] * 9]
    assert after.state.action(int(after.state.decided[2])).by == "bob"


def test_a_part_that_nobody_named_goes_by_what_its_category_is_called_here(
    run: Run, tmp_path: Path
) -> None:
    """The other result swaps the ids of the novel categories."""
    Review(run).act(verbs.split, "novel-002", 2, by="ann")
    (part,) = names(Review(run))["novel-002 (2)"]
    other = write_small(tmp_path / "other", ids=(0, 0, 0, 1, 1, 1, 3, 3, 3, 2, 2, 2))
    _, problems = replay_review(run.path, other, by="ann")
    assert (problems, names(Review(other))["novel-001 (2)"]) == ([], [part])


def test_two_categories_that_are_one_now_are_not_confused(run: Run, tmp_path: Path) -> None:
    """A rename of one category must not apply to the other; a merge of both may."""
    review = Review(run)
    review.act(verbs.rename, "novel-001", "tern", by="ann")
    review.act(verbs.rename, "novel-002", "skua", by="ann")
    ids = (
        0,
        0,
        0,
        1,
        1,
        1,
        1,
        1,
        1,
        2,
        2,
        2,
    )  # heron contains the former novel-001; novel-001 is the former novel-002
    other = write_small(tmp_path / "other", ids=ids, names=NAMES[:3])
    _, problems = replay_review(run.path, other, by="ann")
    assert actions(problems) == [1]
    assert names(Review(other)) == {
        "gull": [0, 1, 2],
        "heron": [3, 4, 5, 6, 7, 8],
        "skua": [9, 10, 11],
    }
    assert set(statuses(Review(other))) == {"predicted"}
    review.act(verbs.merge, ["heron", "tern"], by="bob")
    merged = write_small(tmp_path / "merged", ids=ids, names=NAMES[:3])
    _, problems = replay_review(run.path, merged, by="ann")
    assert problems == []


def test_confirmed_images_of_a_named_category_keep_its_name_where_the_answer_has_no_such_category(
    run: Run, tmp_path: Path
) -> None:
    review = Review(run)
    review.act(verbs.rename, "novel-001", "stern", by="ann")
    review.act(verbs.decide, "confirm", None, ["06.png", "08.png"], by="ann")
    review.act(verbs.rename, "stern", "tern", by="ann")
    review.act(verbs.move, ["00.png"], "tern", by="bob")
    within = (0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2)
    for at, ids in enumerate([within, (0, 0, 0, 1, 1, 1, 0, 1, 2, 2, 2, 2)]):
        other = write_small(tmp_path / f"other{at}", ids=ids, names=NAMES[:3])
        _, problems = replay_review(run.path, other, by="ann")
        after = Review(other)
        assert problems == []
        assert names(after)["tern"] == [0, 6, 8]
        assert [statuses(after)[row] for row in (0, 6, 7, 8)] == [
            "moved",
            "confirmed",
            "predicted",
            "confirmed",
        ]
    review.act(verbs.merge, ["heron", "tern"], by="bob")
    merged = write_small(tmp_path / "merged", ids=within, names=NAMES[:3])
    _, problems = replay_review(run.path, merged, by="ann")
    assert (problems, names(Review(merged))["heron"]) == ([], [0, 3, 4, 5, 6, 7, 8])


def test_a_category_that_a_person_named_is_the_one_that_labels_call_so(
    run: Run, tmp_path: Path
) -> None:
    review = Review(run)
    review.act(verbs.rename, "novel-002", "tern", by="ann")
    review.act(verbs.decide, "confirm", None, ["09.png"], by="ann")
    ids = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 2)
    other = write_small(tmp_path / "other", ids=ids, names=("gull", "heron", "tern", "novel-001"))
    _, problems = replay_review(run.path, other, by="ann")
    assert problems == []
    assert names(Review(other))["tern"] == [6, 7, 8, 9, 11]


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "confirm", "groups": 3},
        {"action": "confirm", "groups": ["gull"]},
        {"action": "confirm", "groups": [{"category": [], "images": ["00.png"]}]},
        {"action": "assign", "category": 0, "images": [["00.png"]]},
        {"action": "rename", "category": [0], "name": "tern"},
        {"action": "rename"},
        {"action": "distinct", "categories": 7},
        {"action": "merge", "categories": [0]},
        {"action": "create", "category": 4, "name": "tern", "images": 7},
        {"action": "undo"},
        {"action": "redo", "of": []},
    ],
)
def test_a_line_that_cannot_be_read_is_listed_and_takes_no_other_with_it(
    run: Run, tmp_path: Path, fields: dict[str, object]
) -> None:
    Review(run).act(verbs.decide, "flag", None, ["03.png"], by="ann")
    with (run.path / "review.jsonl").open("a") as file:
        file.write(json.dumps({"seq": 2, "by": "ann", "at": "now", **fields}) + "\n")
    other = write_small(tmp_path / "other", ids=(0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3))
    entries, problems = replay_review(run.path, other, by="ann")
    assert [entry.kind for entry in entries] == ["flag"]
    assert [problem.partition("): ")[2] for problem in problems] == [UNREADABLE]


def test_a_start_that_cannot_be_read_is_an_error_with_its_file(run: Run, tmp_path: Path) -> None:
    Review(run).act(verbs.decide, "flag", None, ["03.png"], by="ann")
    log = run.path / "review.jsonl"
    log.write_text(log.read_text().replace('"exemplars":["00.png"', '"exemplars":[["00.png"]', 1))
    other = write_small(tmp_path / "other", ids=(0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3))
    with pytest.raises(DataError):
        replay_review(run.path, other, by="ann")


def test_categories_are_followed_through_merges_one_after_the_other(
    run: Run, tmp_path: Path
) -> None:
    """In the other result, novel-001 contains novel-002; it is merged into heron, and heron into
    gull."""
    review = Review(run)
    review.act(verbs.merge, ["novel-001", "heron"], "heron", by="ann")
    review.act(verbs.merge, ["heron", "gull"], "gull", by="ann")
    review.act(verbs.merge, ["novel-002", "gull"], "gull", by="ann")
    one = write_small(tmp_path / "one", ids=(0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2), names=NAMES[:3])
    _, problems = replay_review(run.path, one, by="ann")
    assert (problems, names(Review(one))) == ([], {"gull": list(range(12))})


def test_categories_that_are_not_the_same_are_still_not(run: Run, tmp_path: Path) -> None:
    review = Review(run)
    for pair in ((2, 3), (1, 2)):
        review.act(lambda _, pair=pair: Action(kind="distinct", categories=pair), by="ann")
    other = write_small(tmp_path / "other", ids=(0, 0, 0, 1, 1, 1, 3, 3, 3, 2, 2, 2))
    _, problems = replay_review(run.path, other, by="ann")
    assert (problems, Review(other).state.distinct) == ([], {(2, 3), (1, 3)})
    review.act(verbs.merge, ["novel-001", "novel-002"], by="ann")
    one = write_small(tmp_path / "one", ids=(0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2), names=NAMES[:3])
    _, problems = replay_review(run.path, one, by="ann")
    assert problems == []
