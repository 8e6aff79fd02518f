"""Categories between others, "heron or egret": for images of which nobody can tell to which of them they belong."""

from pathlib import Path

import numpy as np

from shoal.review import verbs
from shoal.review.actions import STATUSES, Action, Group
from shoal.review.decisions import decisions_of
from shoal.review.replay import replay_review
from shoal.review.review import Review
from shoal.runs import Run
from small_runs import NAMES, write_small


def names(review: Review) -> dict[str, list[int]]:
    return {
        record.name: review.state.members(c).tolist()
        for c, record in review.state.categories.items()
    }


def test_a_category_between_two_is_called_as_they_are_and_ends_when_they_are_one(
    review: Review,
) -> None:
    verbs.move(review, ["00.png"], "novel-001 or heron", by="ann")
    assert (review.state.records[4].name, review.state.records[4].between) == (
        "heron or novel-001",
        (1, 2),
    )
    verbs.move(review, ["01.png"], "novel-001 or heron", by="ann")  # it is there already
    verbs.rename(review, "novel-001", "egret", by="bob")
    assert review.state.categories[4].name == "egret or heron"
    assert review.state.versions[4] == review.state.seq  # open pages are told
    review.again("undo", by="bob")
    assert review.state.categories[4].name == "heron or novel-001"
    verbs.merge(review, ["novel-002", "novel-001"], by="bob")
    assert review.state.categories[4].name == "heron or novel-002"
    verbs.merge(review, ["heron", "novel-002"], by="bob")
    assert review.state.members(1).tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert sorted(review.state.categories) == [0, 1]
    assert names(Review(review.run)) == names(review)
    review.again("undo", by="bob")
    assert review.state.members(4).tolist() == [0, 1]
    for _ in range(2):
        review.again("undo", by="ann")  # what others renamed meanwhile is in nobody's way
    assert 4 not in review.state.records


def test_a_category_between_two_keeps_its_name_where_another_has_the_new_one(
    review: Review,
) -> None:
    verbs.move(review, ["00.png"], "egret or heron")
    verbs.move(review, ["01.png"], "heron or novel-001")
    verbs.rename(review, "novel-001", "egret")
    assert [review.state.records[number].name for number in (4, 5)] == [
        "egret or heron",
        "heron or novel-001",
    ]
    assert [review.state.records[number].between for number in (4, 5)] == [(), (1, 2)]


def test_a_name_with_an_or_in_it_is_one_name(review: Review) -> None:
    verbs.rename(review, "gull", "black or white")
    verbs.move(review, ["03.png"], "black or white or novel-001")
    assert review.state.records[4].between == (0, 2)
    verbs.move(review, ["04.png"], "black or heron")  # nothing is called black
    assert review.state.records[5].between == ()


def test_a_category_between_two_has_another_name_where_theirs_is_taken(review: Review) -> None:
    verbs.move(review, ["00.png"], "heron or egret")
    verbs.rename(review, "heron or egret", "egret or heron")
    verbs.rename(review, "novel-001", "egret")
    review.act(lambda state: verbs.between_action(state, np.array([1]), (1, 2)))
    assert (review.state.records[5].name, review.state.records[5].between) == (
        "egret or heron 2",
        (1, 2),
    )


def test_parts_of_a_category_between_two_and_joins_of_such_ones_are_between_them_too(
    review: Review,
) -> None:
    verbs.move(review, ["00.png", "03.png", "06.png"], "gull or heron")
    verbs.split(review, "gull or heron", 2)
    assert (review.state.records[5].name, review.state.records[5].between) == (
        "gull or heron (2)",
        (0, 1),
    )
    verbs.move(review, ["09.png"], "heron or novel-001")
    verbs.merge(review, [4, 5, 6])
    assert (review.state.records[4].name, review.state.records[4].between) == (
        "gull or heron or novel-001",
        (0, 1, 2),
    )
    assert decisions_of(review).labels == {}
    verbs.merge(review, [4, "novel-002"])  # with another one it is a category like any other
    assert (review.state.records[4].between, len(decisions_of(review).labels)) == ((), 4)


def test_a_part_keeps_its_number_whatever_the_two_are_called_so_that_undo_skips_nothing(
    review: Review,
) -> None:
    """With the name of the rest, which was merged away, the part would be in the way when that merge is undone."""
    verbs.move(review, ["00.png", "03.png", "06.png"], "gull or heron", by="ann")
    verbs.split(review, "gull or heron", 2, by="ann")
    verbs.merge(review, ["novel-002", "gull or heron"], by="ann")
    verbs.rename(review, "gull", "tern", by="ann")
    assert review.state.records[5].name == "heron or tern (2)"
    before = review.state.seq
    skipped = [review.again("undo", by="ann")[1] for _ in range(4)]
    assert skipped == [[], [], [], []]
    assert [entry.action.of for entry in review.state.entries[before:]] == [4, 3, 2, 1]
    assert names(review) == {
        name: [3 * at, 3 * at + 1, 3 * at + 2] for at, name in enumerate(NAMES)
    }


def test_a_part_of_a_part_keeps_both_numbers_so_that_a_merge_of_the_first_is_undone(
    review: Review,
) -> None:
    verbs.move(review, ["00.png", "01.png", "03.png", "06.png"], "gull or heron", by="ann")
    verbs.split(review, 4, {"gull or heron (2)": ["00.png", "03.png"]}, by="ann")
    verbs.split(review, 5, {"gull or heron (2) (2)": ["03.png"]}, by="ann")
    verbs.rename(review, "gull", "tern", by="ann")
    parts = ["heron or tern", "heron or tern (2)", "heron or tern (2) (2)"]
    assert [review.state.records[number].name for number in (4, 5, 6)] == parts
    verbs.merge(review, [1, 5], by="ann")
    assert review.state.records[6].name == parts[2]
    assert review.again("undo", by="ann")[1] == []
    assert [review.state.records[number].name for number in (4, 5, 6)] == parts


def test_a_category_between_two_makes_room_for_a_name_that_undo_puts_back(review: Review) -> None:
    """Open pages are told of its other name, and a name that a person gave makes no room."""
    verbs.move(review, ["00.png"], "gull or novel-001", by="ann")
    verbs.move(review, ["03.png"], "heron or novel-001", by="ann")
    before = names(review)
    verbs.merge(review, ["gull", "heron"], by="ann")
    verbs.merge(review, ["gull", "gull or novel-001"], by="ann")
    after = names(review)
    assert after["gull or novel-001"] == [3]
    assert review.again("undo", by="ann")[1] == []
    assert [names(review)[name] for name in ("gull or novel-001", "gull or novel-001 2")] == [
        [0],
        [3],
    ]
    assert review.state.versions[5] == review.state.seq
    assert review.again("undo", by="ann")[1] == []
    assert names(review) == before
    for _ in range(2):
        review.again("redo", by="ann")
    assert names(review) == names(Review(review.run)) == after
    verbs.rename(review, "gull or novel-001", "tern", by="bob")
    verbs.rename(review, "novel-002", "gull or novel-001", by="bob")
    blocked = review.state.why_not("undo", 4)
    assert str(blocked).startswith("gull or novel-001: another category has this name")


def test_a_log_whose_names_were_free_when_it_was_written_is_read_again(review: Review) -> None:
    """Once a part lost its number where one of the two was renamed, so that a part of it could have that number."""
    verbs.move(review, ["00.png", "01.png", "02.png", "03.png"], "gull or heron")
    verbs.split(review, 4, {"gull or heron (2)": ["02.png", "03.png"]})
    verbs.rename(review, 4, "hybrid")
    verbs.rename(review, "gull", "tern")
    verbs.split(review, 5, {"heron or tern (2) (2)": ["03.png"]})
    file = review.run.path / "review.jsonl"
    *before, last = file.read_text(encoding="utf-8").splitlines()
    file.write_text(
        "\n".join([*before, last.replace("tern (2) (2)", "tern (2)"), ""]), encoding="utf-8"
    )
    read = Review(review.run)
    assert [read.state.members(category).tolist() for category in (5, 6)] == [[2], [3]]
    assert read.state.records[6].between == (0, 1)
    assert len(set(names(read))) == len(read.state.categories)


def test_a_name_that_follows_others_is_kept_by_giving_it(review: Review) -> None:
    verbs.move(review, ["00.png"], "gull or heron")
    verbs.rename(review, 4, "gull or heron")
    verbs.rename(review, "gull", "tern")
    assert review.state.categories[4].name == "gull or heron"


def test_no_empty_category_between_two_is_made_onto_a_run_without_its_images(
    run: Run, tmp_path: Path
) -> None:
    """Unless another image was put there, or it was merged with others, which is done all the same."""
    review = Review(run)
    fewer = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3)
    missing = "1 of its images is not in this run"
    verbs.move(review, ["11.png"], "gull or heron", by="ann")
    entries, misfits = replay_review(run.path, write_small(tmp_path / "none", ids=fewer), by="ann")
    assert (entries, [misfit.reason for misfit in misfits]) == ([], [missing])
    verbs.rename(review, "gull or heron", "egret", by="ann")
    entries, misfits = replay_review(
        run.path, write_small(tmp_path / "renamed", ids=fewer), by="ann"
    )
    assert not entries
    assert [misfit.reason for misfit in misfits] == [
        missing,
        "there is no category for gull or heron any more",
    ]
    review.again("undo", by="ann")
    verbs.move(review, ["00.png"], "gull or heron", by="ann")
    replay_review(run.path, other := write_small(tmp_path / "other", ids=fewer), by="ann")
    assert names(Review(other))["gull or heron"] == [0]
    assert Review(other).state.records[4].between == (0, 1)
    review.again("undo", by="ann")
    verbs.merge(review, ["novel-001", "gull or heron", "novel-002"], by="ann")
    _, misfits = replay_review(
        run.path, other := write_small(tmp_path / "merged", ids=fewer), by="ann"
    )
    assert [misfit.reason for misfit in misfits] == [missing]
    assert names(Review(other)) == {
        "gull": [0, 1, 2],
        "heron": [3, 4, 5],
        "novel-001": [6, 7, 8, 9, 10],
    }


def test_a_category_between_two_is_made_without_its_images_where_images_are_between_it_and_another(
    run: Run, tmp_path: Path
) -> None:
    """As long as those are here; where they are not, the names in what is told are the last ones."""
    review = Review(run)
    fewer = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3)
    missing = "1 of its images is not in this run"
    verbs.move(review, ["11.png"], "gull or heron", by="ann")
    verbs.rename(review, "gull or heron", "egret", by="ann")
    verbs.move(review, ["11.png"], "egret or novel-001", by="ann")
    verbs.rename(review, "egret or novel-001", "ibis", by="ann")
    entries, misfits = replay_review(run.path, write_small(tmp_path / "none", ids=fewer), by="ann")
    lost = [
        f"there is no category for {name} any more"
        for name in ("gull or heron", "egret", "egret or novel-001")
    ]
    assert (entries, [misfit.reason for misfit in misfits]) == (
        [],
        [missing, lost[0], f"{lost[1]}; {missing}", lost[2]],
    )
    review.again("undo", by="ann")
    verbs.move(review, ["00.png"], "egret or novel-001", by="ann")
    _, misfits = replay_review(
        run.path, other := write_small(tmp_path / "other", ids=fewer), by="ann"
    )
    assert [misfit.reason for misfit in misfits] == [missing, missing]
    assert names(Review(other)) | {"egret": [], "egret or novel-001": [0]} == names(Review(other))
    assert Review(other).state.records[5].between == (2, 4)


def test_a_category_between_two_outlives_one_that_was_never_made(review: Review) -> None:
    verbs.move(review, ["00.png"], "tern", by="ann")
    verbs.move(review, ["01.png"], "gull or tern", by="bob")
    review.again("undo", by="ann")
    verbs.rename(review, "gull", "skua", by="bob")
    assert names(review)["gull or tern"] == [1]
    assert decisions_of(review).undecided == {"01.png"}


def test_images_between_two_categories_have_no_label_and_no_category(review: Review) -> None:
    verbs.move(review, ["00.png", "06.png", "07.png"], "gull or heron", by="ann")
    verbs.decide(review, "confirm", None, ["06.png"], by="ann")
    verbs.decide(review, "reject", None, ["07.png"], by="ann")
    found = decisions_of(review)
    assert (found.known, found.names) == (
        (0, 1),
        {0: "gull", 1: "heron", 2: "novel-001", 3: "novel-002"},
    )
    assert (found.labels, found.label("00.png"), found.apart) == ({}, -1, {})
    assert found.undecided == {"00.png", "06.png"} <= found.contradicted | {"06.png"}
    assert not found.undecided & {*found.categories}
    assert "gull or heron" in found.taken
    verbs.rename(review, "gull or heron", "bird", by="ann")  # a category like any other from now on
    assert decisions_of(review).labels == {"00.png": 4, "06.png": 4}
    assert decisions_of(review).became_known == (4,)


def test_what_is_between_two_is_so_onto_another_answer_by_the_names_there(
    run: Run, tmp_path: Path
) -> None:
    """Of the other answer novel categories are numbered the other way round; then the two are one."""
    review = Review(run)
    verbs.move(review, ["00.png", "09.png"], "heron or novel-001", by="ann")
    group = Group(category=4, rows=np.array([1]))
    review.act(lambda _: Action(kind="assign", category=4, groups=(group,), via="grow"), by="ann")
    other = write_small(tmp_path / "other", ids=(0, 0, 0, 1, 1, 1, 3, 3, 3, 2, 2, 2))
    entries, misfits = replay_review(run.path, other, by="ann")
    assert (misfits, names(Review(other))["heron or novel-002"]) == ([], [0, 1, 9])
    assert (entries[0].action.categories, entries[1].action.via) == ((1, 3), "grow")
    verbs.rename(review, "novel-001", "heron 2", by="ann")
    known = write_small(tmp_path / "known", names=("gull", "heron", "heron 2", "novel-002"))
    replay_review(run.path, known, by="ann")
    assert names(Review(known))["heron or heron 2"] == [0, 1, 9]
    verbs.merge(review, ["heron", "heron 2"], by="ann")
    one = write_small(
        tmp_path / "one",
        ids=(0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2),
        names=("gull", "heron", "novel-001"),
    )
    replay_review(run.path, one, by="ann")
    assert names(Review(one)) == {
        "gull": [2],
        "heron": [0, 1, *range(3, 10)],
        "novel-001": [10, 11],
    }


def test_what_was_between_two_and_then_named_is_that_in_the_next_run(
    run: Run, review: Review, tmp_path: Path
) -> None:
    """The discovery after the review knows it by its name: its images are not put between the two once more."""
    verbs.move(review, ["02.png", "03.png"], "gull or heron")
    verbs.rename(review, "gull or heron", "egret")
    other = write_small(
        tmp_path / "other", ids=(0, 0, 4, 4, 1, 1, 2, 2, 2, 3, 3, 3), names=(*NAMES, "egret")
    )
    _, misfits = replay_review(
        run.path, other, by="ann", ids={number: number for number in range(5)}
    )
    after = Review(other).state
    assert (misfits, [record.name for record in after.categories.values()]) == (
        [],
        [*NAMES, "egret"],
    )
    assert after.members(4).tolist() == [2, 3]
    assert [STATUSES[status] for status in after.images.status[2:4]] == ["moved", "moved"]
