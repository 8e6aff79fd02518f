"""`shoal discover` on unusual tables, names and files."""

import json
import os
import shutil
from pathlib import Path

import pytest

from commands import discover, refused, shoal
from shoal.cli import console

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_table_with_many_missing_images_is_refused_unless_allowed(given, photos) -> None:
    photos.labels.write_text(photos.labels.read_text().rstrip() + "\ngone.png,red\nlost.png,red\n")
    refused(
        discover(*given, "--dry-run"),
        3,
        "2 of 20 rows name missing images",
        "--allow-missing",
    )
    allowed = discover(*given, "--dry-run", "--allow-missing")
    assert allowed.exit_code == 0, allowed.stderr
    assert "note: 2 rows without an image" in allowed.stderr


def test_control_characters_in_messages_are_made_visible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for speak in (console.log, console.log_error):
        speak("heron\x1b]0;owned\x07.jpg")
        assert capsys.readouterr().err == "heron␛]0;owned␇.jpg\n"


def test_control_characters_in_results_are_made_visible_only_on_a_terminal(
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
def test_control_characters_in_unknown_options_and_commands_are_made_visible(
    words: list[str],
) -> None:
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
        "dead.png,not a regular file or a broken link",
        "pipe.png,not a regular file or a broken link",
    ]


def test_control_characters_in_names_are_made_visible_everywhere(
    given, photos, tmp_path: Path
) -> None:
    """Names contain an escape sequence that sets the terminal title, a bell and reversed text; the
    name of a folder also contains a line break."""
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


def test_exact_copies_of_images_are_counted(given, photos) -> None:
    first = min(photos.folder.glob("*.png"))
    shutil.copy(first, photos.folder / "zz-copy.png")
    found = discover(*given, "--no-train", "--n-clusters", 5)
    assert "the same pixels as another one" in found.stderr
    assert "zz-copy.png" in found.stderr
