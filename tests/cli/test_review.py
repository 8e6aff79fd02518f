"""`shoal review` from the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from commands import shoal
from forks import Forked
from served import HANGS_S, served, until
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run
from small_runs import write_small


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_small(tmp_path / "run")


def test_salvage_lists_damaged_lines_and_refuses_a_run_without_a_log(run: Run) -> None:
    assert shoal("review", str(run.path), "--salvage").exit_code == 2
    Review(run).act(verbs.decide, "confirm", "gull", None)
    with (run.path / "review.jsonl").open("a") as file:
        file.write("damaged\n")
    done = shoal("review", str(run.path), "--salvage", "--json")
    assert done.exit_code == 0
    assert len(json.loads(done.stdout)["dropped"]) == 1
    assert Review(run).state.seq == 1


def test_ctrl_c_ends_the_server_with_the_next_command(run: Run) -> None:
    Review(run).act(verbs.decide, "confirm", "gull", None)
    command = [sys.executable, "-m", "shoal", "review", str(run.path), "--no-open", "--port", "0"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    out, messages = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, messages
    assert out == ""


OPENS = """
import json, pathlib, re, sys, urllib.request
page = urllib.request.urlopen(sys.argv[1]).read().decode()
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
url = re.search("url=([^\\"]+)", page)[1]
found = {"command": sys.argv, "page": opener.open(url).read().decode()}
part = pathlib.Path(sys.argv[0]).with_suffix(".part")
part.write_text(json.dumps(found))
part.rename(part.with_suffix(".json"))
"""


def test_the_browser_opens_a_private_file_instead_of_the_token(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other accounts can see the command line of the browser, which may stay in the foreground."""
    browser = tmp_path / "browser.py"
    browser.write_text(OPENS)
    monkeypatch.setenv("BROWSER", f"{sys.executable} {browser} %s")
    with closing(Forked("review", str(run.path), "--port", "0")) as process:
        url = process.stdout.readline().strip()
        assert any("opening it in a browser" in line for line in process.stderr)
        until(browser.with_suffix(".json").exists)
        found = json.loads(browser.with_suffix(".json").read_text())
        assert "<title>" in found["page"]
        assert url.partition("token=")[2] not in " ".join(found["command"])
        file = Path(found["command"][1].removeprefix("file://"))
        assert file.parent.stat().st_mode & 0o077 == 0
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANGS_S)
    assert not file.exists()


@pytest.mark.parametrize("line", ["half", '{"seq":1,"acti'])
def test_an_incomplete_line_of_the_log_is_reported(run: Run, line: str) -> None:
    Review(run).act(verbs.rename, "gull", "tern")
    with (run.path / "review.jsonl").open("a") as file:
        file.write(line)
    with served(run.path) as server:
        names = [category["name"] for category in server.json("/api/run")["categories"]]
        assert names[0] == "tern"
        server.process.send_signal(signal.SIGINT)
        assert "ignoring an incomplete last line" in server.process.communicate(timeout=HANGS_S)[1]
    Review(run).act(verbs.rename, "tern", "skua")
    assert line not in (run.path / "review.jsonl").read_text().splitlines()


def test_moved_images_are_reported_and_found_with_images(run: Run, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    run.note(root=str(tmp_path / "photos"))

    def output(*options: str) -> str:
        with served(run.path, *options) as server:
            status = server.ask("/image/0")[0]
            server.process.send_signal(signal.SIGINT)
            return f"{status} {server.process.communicate(timeout=HANGS_S)[1]}"

    note = "note: enlarged images are not available: there is no folder"
    assert output().startswith(f"400 {note} {tmp_path / 'photos'}; if they were moved,")
    Image.new("RGB", (40, 20)).save(moved / run.assignments[0].path)
    assert output("--images", str(moved)).startswith("200 Ctrl-C")


def test_a_review_of_another_run_is_replayed_and_unapplied_actions_are_reported(
    run: Run, tmp_path: Path
) -> None:
    review = Review(run)
    review.act(verbs.rename, "novel-001", "tern")
    review.act(verbs.rename, "novel-002", "skua")
    other = write_small(
        tmp_path / "other", ids=(0, 0, 0, 1, 1, 0, 2, 2, 2), names=("gull", "heron", "novel-001")
    )
    with served(other.path, "--replay", str(run.path)) as server:
        (problem,) = server.said["not_applied"]
        assert problem.endswith("(action 2): no category of this run matches skua")
        assert "tern" in [category["name"] for category in server.json("/api/run")["categories"]]


def test_a_repeated_run_replays_its_review(run: Run) -> None:
    Review(run).act(verbs.rename, "novel-001", "tern")
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


def test_user_errors_are_refused(run: Run, tmp_path: Path) -> None:
    refused(tmp_path)
    refused(run.path, "--images", "nowhere")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused(run.path, "--port", taken.getsockname()[1])
    refused(run.path, "--port", 70000)
    refused(run.path, "--replay", tmp_path)
    refused(run.path, "--host", "203.0.113.7")
    refused(run.path, "--host", "")  # an empty host would mean all addresses


@pytest.mark.parametrize(
    ("part", "is_now"), [("05.png,,1,heron", "05.png,,1,egret"), ("05.png", "04.png")]
)
def test_an_edited_table_is_refused_by_its_name(run: Run, part: str, is_now: str) -> None:
    table = run.path / "assignments.csv"
    table.write_text(table.read_text().replace(part, is_now))
    assert str(table) in refused(run.path)


def test_a_damaged_review_is_refused_with_its_line(run: Run) -> None:
    (run.path / "review.jsonl").write_text("{}\n")
    assert "review.jsonl, line 1" in refused(run.path)
