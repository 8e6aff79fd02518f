"""`shoal discover` on tables and names that are not what they should be."""

import json
import os
from pathlib import Path

import pytest

from commands import discover, refused, shoal
from shoal.cli import console

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_table_with_many_paths_to_nothing_stops_before_anything_is_done_unless_allowed(
    given, photos
) -> None:
    photos.labels.write_text(photos.labels.read_text().rstrip() + "\ngone.png,red\nlost.png,red\n")
    refused(
        discover(*given, "--dry-run"),
        3,
        "2 of 20 rows name images that are not there",
        "--allow-missing",
    )
    allowed = discover(*given, "--dry-run", "--allow-missing")
    assert allowed.exit_code == 0, allowed.stderr
    assert "note: 2 rows name images that are not there" in allowed.stderr


def test_every_line_for_a_person_is_made_visible_where_it_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for speak in (console.say, console.complain):
        speak("heron\x1b]0;owned\x07.jpg")
        assert capsys.readouterr().err == "heron␛]0;owned␇.jpg\n"


def test_a_result_is_made_visible_on_a_terminal_and_is_as_it_is_for_a_program(
    capsys, monkeypatch
) -> None:
    for is_terminal, expected in (
        (True, "heron␛]0;owned␇\nnext\n"),
        (False, "heron\x1b]0;owned\x07\nnext\n"),
    ):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        console.result("heron\x1b]0;owned\x07\nnext", {}, as_json=False)
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    "words",
    [["discover", "--no\x1b]0;owned\x07"], ["rep\x1b]0;owned\x07ort"]],
    ids=["option", "command"],
)
def test_a_word_that_is_no_option_or_command_is_made_visible_too(words: list[str]) -> None:
    run = shoal(*words)
    assert run.exit_code == 2
    assert "]0;owned" in run.stderr
    assert not {letter for letter in run.stderr if letter != "\n" and not letter.isprintable()}


@pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")
def test_dead_links_and_pipes_are_listed_in_skipped_csv(given, photos, tmp_path: Path) -> None:
    (photos.folder / "dead.png").symlink_to("nowhere.png")
    os.mkfifo(photos.folder / "pipe.png")
    found = discover(*given, "--no-train", "--n-clusters", 5)
    assert found.exit_code == 0, found.stderr
    listed = (tmp_path / "run" / "skipped.csv").read_text().splitlines()
    assert listed[1:] == [
        "dead.png,a link to nothing",
        'pipe.png,"no plain file (a pipe, a socket or a device)"',
    ]


def test_names_that_steer_a_terminal_are_made_visible_wherever_they_are_said(
    given, photos, tmp_path: Path
) -> None:
    """An escape that would set the title, a bell, letters turned around; in a folder's name a
    line break too.
    """
    evil = "\x1b]0;owned\x07error: all gone \u202egnp.exe\x9b31m"
    visible = "␛]0;owned␇error: all gone ‹U+202E›gnp.exe�31m"
    labels = photos.labels.read_text().replace(",red", f',"red{evil}"').rstrip()
    photos.labels.write_text(f'{labels}\n"gone{evil}",blue\n')
    found = discover(*given, "--no-train", "--n-clusters", 5)
    assert found.exit_code == 0, found.stderr
    log = (tmp_path / "run" / "train.log").read_text()
    for text in (found.stderr, log):
        assert f"gone{visible}" in text
        assert not {letter for letter in text if letter != "\n" and not letter.isprintable()}
        assert not any(line.startswith("error") for line in text.splitlines())
    listed = discover(*given, "--dry-run", "--force", "--json").stdout
    assert listed.rstrip("\n").isprintable()
    assert f"red{evil}" in json.loads(listed)["classes"]
    refused(discover(tmp_path / f"no\nerror{evil}"), 3, f"no␊error{visible}: no such folder")
