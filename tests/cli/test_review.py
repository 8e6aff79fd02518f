"""`shoal review` from the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest
from PIL import Image

from commands import shoal
from forks import Forked
from served import HANGS_S, served, until
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server.guard import KeyForOnce
from small_runs import write_small


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_small(tmp_path / "run")


def test_ctrl_c_ends_it_with_what_was_decided_and_the_next_command(run: Run) -> None:
    verbs.decide(Review(run), "confirm", "gull", None)
    command = [sys.executable, "-m", "shoal", "review", str(run.path), "--no-open", "--port", "0"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, said
    assert out == ""
    assert "of 12 images 3 confirmed" in said
    assert "next: shoal export" in said


OPENS = """
import json, pathlib, sys, urllib.request
cookies = urllib.request.HTTPCookieProcessor()
opener = urllib.request.build_opener(cookies)
found = {"command": sys.argv, "page": opener.open(sys.argv[1]).read().decode()}
found["again"] = opener.open(sys.argv[1]).status
found["cookie"] = "; ".join(f"{one.name}={one.value}" for one in cookies.cookiejar)
part = pathlib.Path(sys.argv[0]).with_suffix(".part")
part.write_text(json.dumps(found))
part.rename(part.with_suffix(".json"))
"""


def test_a_browser_that_stays_in_the_foreground_is_answered_and_its_command_opens_the_page_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser.py"
    browser.write_text(OPENS)
    monkeypatch.setenv("BROWSER", f"{sys.executable} {browser} %s")
    with closing(Forked("review", str(run.path), "--port", "0")) as process:
        url = process.stdout.readline().strip()
        assert any("it opens in a browser" in line for line in process.stderr)
        until(browser.with_suffix(".json").exists)
        found = json.loads(browser.with_suffix(".json").read_text())
        assert "<title>" in found["page"]
        assert url.partition("token=")[2] not in " ".join(found["command"])
        assert found["again"] == 200, "with its cookie"
        with pytest.raises(HTTPError, match="403") as refused:
            urlopen(found["command"][1])
        assert (
            "The key that this browser was started with has been used"
            in refused.value.read().decode()
        )
        thief = Request(url.partition("?")[0], headers={"Cookie": found["cookie"]})
        with pytest.raises(HTTPError, match="403") as shut:
            urlopen(thief)
        assert (
            "has been used a second time, so what it had opened is shut"
            in shut.value.read().decode()
        )
        assert build_opener(HTTPCookieProcessor()).open(url).status == 200, (
            "the printed address, as often as wanted"
        )


def test_a_key_for_once_opens_once_and_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("shoal.server.guard.time.monotonic", lambda: now[0])
    key = KeyForOnce()
    late = KeyForOnce()
    assert not key.opens("", "")
    assert [key.opens(key.secret, ""), key.opens(key.secret, key.cookie)] == [True, False]
    now[0] += 61
    assert not late.opens(late.secret, "")
    assert not key.opens(key.secret, "")
    assert key.is_taken_back, "by a browser that asks late, too"


def test_whoever_was_faster_with_the_key_is_shut_out_when_the_browser_asks() -> None:
    key = KeyForOnce()
    assert key.opens(key.secret, "")
    assert not key.opens(key.secret, key.cookie), "the same browser again"
    assert not key.is_taken_back
    assert not key.opens(key.secret, "")
    assert key.is_taken_back


@pytest.mark.parametrize("line", ["half", '{"seq":1,"acti'])
def test_half_a_line_is_told(run: Run, line: str) -> None:
    verbs.rename(Review(run), "gull", "tern")
    with (run.path / "review.jsonl").open("a") as file:
        file.write(line)
    with served(run.path) as server:
        names = [category["name"] for category in server.json("/api/run")["categories"]]
        assert names[0] == "tern"
        server.process.send_signal(signal.SIGINT)
        assert "half a line at the end of" in server.process.communicate(timeout=HANGS_S)[1]
    verbs.rename(Review(run), "tern", "skua")
    assert line not in (run.path / "review.jsonl").read_text().splitlines()


def test_images_that_have_moved_are_told_and_found_in_another_folder(
    run: Run, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    run.note(root=str(tmp_path / "photos"))

    def said(*options: str) -> str:
        with served(run.path, *options) as server:
            status = server.ask("/image/0")[0]
            server.process.send_signal(signal.SIGINT)
            return f"{status} {server.process.communicate(timeout=HANGS_S)[1]}"

    note = "note: no original can be shown enlarged: the"
    assert said().startswith(
        f"400 {note} folder of the images is not there ({tmp_path / 'photos'})"
    )
    assert said("--images", str(moved)).startswith(
        f"400 {note} images are not in {moved}; if they have moved,"
    )
    Image.new("RGB", (40, 20)).save(moved / run.assignments[0].path)
    assert said("--images", str(moved)).startswith("200 Ctrl-C")


def test_the_review_of_another_run_is_replayed_and_what_does_not_fit_is_said(
    run: Run, tmp_path: Path
) -> None:
    review = Review(run)
    verbs.rename(review, "novel-001", "tern")
    verbs.rename(review, "novel-002", "skua")
    other = write_small(
        tmp_path / "other", ids=(0, 0, 0, 1, 1, 0, 2, 2, 2), names=("gull", "heron", "novel-001")
    )
    with served(other.path, "--replay", str(run.path)) as server:
        (misfit,) = server.said["does_not_fit"]
        assert misfit.endswith("(action 2): there is no category for novel-002 any more")
        assert "tern" in [category["name"] for category in server.json("/api/run")["categories"]]


def test_a_run_made_anew_replays_its_own_review(run: Run) -> None:
    verbs.rename(Review(run), "novel-001", "tern")
    Run.create(run.path, force=True)
    write_small(run.path, ids=(0, 0, 0, 1, 1, 0, 3, 3, 3, 2, 2, 2))
    with served(run.path) as server:
        names = {
            category["id"]: category["name"] for category in server.json("/api/run")["categories"]
        }
        assert names[3] == "tern"


def refused(*words: object) -> str:
    done = shoal("review", *words, "--no-open")
    assert done.exit_code in (2, 3), done.stderr
    return done.stderr


def test_user_errors(run: Run, tmp_path: Path) -> None:
    refused(tmp_path)
    refused(run.path, "--images", "nowhere")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused(run.path, "--port", taken.getsockname()[1])
    refused(run.path, "--port", 70000)
    refused(run.path, "--replay", tmp_path)
    refused(run.path, "--host", "203.0.113.7")
    refused(run.path, "--host", "")  # would be every address


@pytest.mark.parametrize(
    ("part", "is_now"), [("05.png,,1,heron", "05.png,,1,egret"), ("05.png", "04.png")]
)
def test_an_edited_table_is_refused_with_its_line(run: Run, part: str, is_now: str) -> None:
    table = run.path / "assignments.csv"
    table.write_text(table.read_text().replace(part, is_now))
    assert "line 7" in refused(run.path)


def test_a_damaged_review_is_refused_with_its_line(run: Run) -> None:
    (run.path / "review.jsonl").write_text("{}\n")
    assert "review.jsonl, line 1" in refused(run.path)
