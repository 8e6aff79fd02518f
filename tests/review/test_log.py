"""No acknowledged action is lost; an incompletely written one is reported and dropped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.discovery.export.formats import export_run
from shoal.errors import DataError, ShoalError, UsageError
from shoal.review import verbs
from shoal.review.review import Review, salvage
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run
from small_runs import write_small


def lines(run: Run) -> list[dict]:
    return [json.loads(line) for line in (run.path / "review.jsonl").read_text().splitlines()]


def test_a_look_writes_nothing_and_an_action_says_who_when_what(run: Run) -> None:
    review = Review(run)
    assert not (run.path / "review.jsonl").exists()
    review.act(verbs.decide, "confirm", None, ["00.png", "06.png"], by="ann")
    start, action = lines(run)
    assert (start["seq"], start["action"]) == (0, "start")
    assert start["categories"][2]["exemplars"] == ["06.png", "07.png", "08.png"]
    assert action.pop("at").endswith("+00:00")
    groups = [{"category": 0, "images": ["00.png"]}, {"category": 2, "images": ["06.png"]}]
    assert action == {"seq": 1, "action": "confirm", "by": "ann", "groups": groups}


def test_an_action_that_is_refused_begins_no_log(run: Run) -> None:
    before = sorted(file.name for file in run.path.iterdir())
    with pytest.raises(UsageError):
        Review(run).act(verbs.decide, "confirm", "00.png", None)
    with pytest.raises(UsageError):
        Review(run).undo()
    assert sorted(file.name for file in run.path.iterdir()) == before


def test_half_a_last_line_is_told_and_dropped(run: Run) -> None:
    Review(run).act(verbs.rename, "gull", "tern")
    file = run.path / "review.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines()[1][:30])
    review = Review(run)
    assert review.state.categories[0].name == "tern"
    review.act(verbs.rename, "tern", "skua")
    assert [line["seq"] for line in lines(run)] == [0, 1, 2]


@pytest.mark.parametrize("content", ["", '{"seq":0,"action":"sta'])
def test_a_log_without_a_whole_first_line_is_begun_anew(run: Run, content: str) -> None:
    """An action appended to such a log could never be read again."""
    (run.path / "review.jsonl").write_text(content)
    review = Review(run)
    for name in ("egret", "tern"):
        review.act(verbs.rename, 2, name)
    assert [line["action"] for line in lines(run)] == ["start", "rename", "rename"]
    assert Review(run).state.name(2) == "tern"


def test_who_only_reads_a_log_is_told_of_half_a_line(run: Run, tmp_path: Path) -> None:
    Review(run).act(verbs.rename, "gull", "tern")
    assert Review(run).log.note == ""
    with (run.path / "review.jsonl").open("a") as file:
        file.write('{"seq":2,"acti')
    before = (run.path / "review.jsonl").read_bytes()
    assert "review.jsonl" in Review(run).log.note
    (note,) = export_run(ReviewedRun.open(run.path), "csv", tmp_path / "out").notes
    assert note == Review(run).log.note
    assert (run.path / "review.jsonl").read_bytes() == before


def test_a_last_line_that_only_lacks_its_line_break_counts(run: Run) -> None:
    """Some editors remove the last line break."""
    Review(run).act(verbs.rename, "gull", "tern")
    file = run.path / "review.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    reader = Review(run)
    writer = Review(run)
    assert (reader.state.categories[0].name, reader.log.note, reader.log.has_more) == (
        "tern",
        "",
        False,
    )
    writer.act(verbs.rename, "tern", "skua")
    reader.refresh()
    assert reader.state.categories[0].name == "skua"
    assert [line["seq"] for line in lines(run)] == [0, 1, 2]
    file.write_bytes(file.read_bytes()[:-1].replace(b'"seq":2', b'"seq":7'))  # wrong number
    assert Review(run).state.categories[0].name == "tern"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seq":1', '"seq":7'),
        ('"action":"rename"', '"action":"explode"'),
        ('"category":0', '"category":99'),
        ('"category":0', '"category":"0"'),
        ('"name":"tern"', '"name":""'),
        ('"by"', '"who"'),
        ("{", "["),
    ],
)
def test_a_line_that_does_not_fit_is_named(run: Run, old: str, new: str) -> None:
    Review(run).act(verbs.rename, "gull", "tern")
    file = run.path / "review.jsonl"
    start, line = file.read_text().splitlines()
    assert old in line
    file.write_text(f"{start}\n{line.replace(old, new, 1)}\n")
    with pytest.raises(DataError):
        Review(run)


def test_a_full_disk_leaves_the_log_as_it_was(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    review = Review(run)
    review.act(verbs.rename, "gull", "tern")
    before = (run.path / "review.jsonl").read_bytes()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if b"skua" not in data:
            return write(descriptor, data)
        write(descriptor, data[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(ShoalError):
            review.act(verbs.rename, "tern", "skua")
    assert (run.path / "review.jsonl").read_bytes() == before
    assert review.state.categories[0].name == "tern"
    review.act(verbs.rename, "tern", "skua")
    assert Review(run).state.categories[0].name == "skua"


def test_a_run_written_anew_meanwhile_takes_no_action(run: Run) -> None:
    review = Review(run)
    rows = run.assignments
    run.write_assignments(rows[:-1])
    with pytest.raises(UsageError):
        review.act(verbs.rename, "gull", "tern")


WORKER = """
import sys
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run

review = Review(Run.open(sys.argv[1]))
for turn in range(int(sys.argv[2])):
    review.act(verbs.rename, int(sys.argv[3]), f"{sys.argv[4]} {turn}", by=sys.argv[4])
    print(turn, flush=True)
"""


def worker(run: Run, n_actions: int, category: int, by: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WORKER, str(run.path), str(n_actions), str(category), by]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def test_a_killed_process_loses_nothing_that_it_has_answered(run: Run) -> None:
    process = worker(run, 100_000, 0, "ann")
    assert process.stdout is not None
    answered = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    answered += process.communicate()[0].splitlines()
    review = Review(run)
    assert review.state.seq >= len(answered)
    assert review.state.seq <= len(answered) + 1  # only the last may be unacknowledged
    review.act(verbs.rename, 0, "after")  # the killed process released its lock
    assert Review(run).state.categories[0].name == "after"


def test_two_processes_at_once_lose_nothing_of_each_other(run: Run) -> None:
    both = [worker(run, 25, category, by) for category, by in ((0, "ann"), (1, "bob"))]
    for process in both:
        process.communicate()
        assert process.returncode == 0
    state = Review(run).state
    assert state.seq == 50
    assert [record.name for record in state.categories.values()][:2] == ["ann 24", "bob 24"]


@pytest.mark.parametrize("what", ["moved away", "older copy", "other log"])
def test_nothing_is_added_to_a_log_that_another_program_has_replaced(
    run: Run, tmp_path: Path, what: str
) -> None:
    """The action would be acknowledged, but would make the log unreadable."""
    review = Review(run)
    review.act(verbs.decide, "confirm", "gull", None, by="ann")
    older = review.log.file.read_bytes()
    review.act(verbs.decide, "confirm", "heron", None, by="ann")
    newest = review.log.file.read_bytes()
    other = Review(write_small(tmp_path / "other"))
    for name in ("tern", "skua" * 40, "auk" * 40, "egret"):
        other.act(verbs.rename, 0, name, by="bob")
    assert other.log.file.stat().st_size > len(newest)
    if what == "moved away":
        review.log.file.rename(tmp_path / "away.jsonl")
    else:
        review.log.file.write_bytes(older if what == "older copy" else other.log.file.read_bytes())
    assert review.log.has_more
    for _ in range(2):
        with pytest.raises(UsageError):
            review.act(verbs.decide, "flag", None, ["09.png"], by="ann")
    review.log.file.write_bytes(newest)
    review.act(verbs.decide, "flag", None, ["09.png"], by="ann")
    assert Review(run).state.seq == 3


@pytest.mark.parametrize("category", [10**9, 2**62, 10**30])
def test_an_id_that_no_category_can_have_is_damage(run: Run, category: int) -> None:
    """Sizes are counted in an array indexed by id: this id would take all memory."""
    review = Review(run)
    review.act(verbs.move, ["00.png"], "tern", by="ann")
    log = review.log.file
    log.write_text(
        log.read_text().replace(
            '"category":4,"name":"tern"', f'"category":{category},"name":"tern"'
        )
    )
    with pytest.raises(DataError):
        Review(run)


def test_a_folder_in_the_place_of_the_log_is_refused(run: Run) -> None:
    (run.path / "review.jsonl").mkdir()
    with pytest.raises(DataError, match="folder"):
        Review(run)
    with pytest.raises(DataError, match="folder"):
        ReviewedRun.open(run.path)


def test_the_good_part_of_a_damaged_log_can_be_kept(run: Run) -> None:
    """The third line is damaged, so the undo of its action, the fifth line, is dropped too."""
    review = Review(run)
    review.act(verbs.decide, "confirm", None, ["00.png"], by="ann")
    review.act(verbs.rename, "heron", "egret", by="ben")
    review.act(verbs.move, ["06.png"], "gull", by="ann")
    review.undo(by="ben")
    review.act(verbs.move, ["07.png"], "gull", by="ann")
    review.undo(by="ann")
    assert salvage(run) == ([], None)
    file = run.path / "review.jsonl"
    damaged = file.read_bytes().split(b"\n")
    damaged[2] = damaged[2][:20] + b"\xff"
    file.write_bytes(b"\n".join(damaged))
    with pytest.raises(DataError):
        Review(run)
    dropped, copy = salvage(run)
    assert [text.partition(":")[0] for text in dropped] == ["line 3", "line 5"]
    assert copy is not None
    assert copy.read_bytes() == b"\n".join(damaged)
    found = Review(run).state
    assert [entry.kind for entry in found.actions] == ["confirm", "assign", "assign", "undo"]
    assert found.category[[6, 7]].tolist() == [0, 2]
    assert salvage(run) == ([], None)


def test_a_log_that_lost_its_first_line_is_salvaged(run: Run) -> None:
    Review(run).act(verbs.move, ["06.png"], "gull", by="ann")
    file = run.path / "review.jsonl"
    file.write_bytes(b"{}\n" + file.read_bytes().split(b"\n", 1)[1])
    assert len(salvage(run)[0]) == 1
    assert Review(run).state.category[6] == 0
