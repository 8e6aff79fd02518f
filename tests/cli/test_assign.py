"""`shoal assign`: assign new images to a finished run."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from commands import shoal
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def photos(same_photos):
    return same_photos


@pytest.fixture
def run(discover_same) -> Path:
    return discover_same()


@pytest.mark.slow
def test_the_table_is_printed_or_written(run: Path, photos, tmp_path: Path) -> None:
    printed = shoal("assign", run, photos.folder, "--device", "cpu")
    assert printed.exit_code == 0, printed.stderr
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    assert [row["path"] for row in rows] == sorted(photos.truth)
    assert [row["category_id"] for row in rows] == [
        str(row.category_id) for row in Run.open(run).assignments
    ]
    assert "assigned 60 images, 0 of them possibly new (outlier score above" in printed.stderr
    written = shoal("assign", run, photos.folder, "--out", tmp_path / "new.csv", "--device", "cpu")
    assert written.stdout == f"{tmp_path / 'new.csv'}\n"
    assert (tmp_path / "new.csv").read_text() == printed.stdout


def test_json_is_one_object_with_a_row_per_image(run: Path, photos) -> None:
    found = json.loads(shoal("assign", run, photos.folder, "--json", "--device", "cpu").stdout)
    assert (found["n_images"], found["n_possibly_new"], len(found["assignments"])) == (60, 0, 60)


def test_an_unfinished_run_is_refused(run: Path, photos) -> None:
    opened = Run(run)
    opened.write_json("provenance", {**opened.provenance, "finished": None})
    assert shoal("assign", run, photos.folder).exit_code == 3


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"], ["--out"]], ids=["rows", "json", "file"])
def test_a_folder_is_watched_until_ctrl_c(
    run: Path, photos, tmp_path: Path, monkeypatch, flags
) -> None:
    inbox = tmp_path / "inbox"
    names = iter(sorted(photos.truth)[:2])
    inbox.mkdir()
    n_looks = 0

    def sleep(seconds: float) -> None:
        nonlocal n_looks
        n_looks += 1
        if n_looks > 5:
            raise KeyboardInterrupt
        if (name := next(names, None)) is not None:
            shutil.copy(photos.folder / name, inbox / f"two\nlines-{name}")

    monkeypatch.setattr("shoal.cli.finished_run.time.sleep", sleep)
    out = tmp_path / "new.csv"
    flags = [*flags, out] if flags == ["--out"] else flags
    found = shoal("assign", run, inbox, "--watch", "--device", "cpu", *flags)
    assert found.exit_code == 0, found.stderr
    assert found.stderr.splitlines() == [f"watching {inbox}; Ctrl-C stops", "assigned 2 images"]
    expected = [row.category_id for row in Run.open(run).assignments[:2]]
    if "--json" in flags:
        assert [json.loads(line)["category_id"] for line in found.stdout.splitlines()] == expected
        return
    table = out.read_text() if out.exists() else found.stdout
    assert [int(row["category_id"]) for row in csv.DictReader(io.StringIO(table))] == expected


def test_an_existing_file_is_not_overwritten_unless_forced(run, photos, tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    out.write_text("mine\n")
    refused = shoal("assign", run, photos.folder, "--out", out, "--device", "cpu")
    assert refused.exit_code == 2
    assert "give --force" in refused.stderr
    assert out.read_text() == "mine\n"
    assert (
        shoal("assign", run, photos.folder, "--out", out, "--force", "--device", "cpu").exit_code
        == 0
    )
    assert out.read_text() != "mine\n"


def test_a_restarted_watch_keeps_the_rows_of_moved_images(
    run: Path, photos, tmp_path: Path, monkeypatch
) -> None:
    first, second = sorted(photos.truth)[:2]
    inbox = tmp_path / "inbox"
    out = tmp_path / "new.csv"
    inbox.mkdir()
    for name in (first, second):
        looks = iter([None, KeyboardInterrupt])
        monkeypatch.setattr(
            "shoal.cli.finished_run.time.sleep", lambda seconds, looks=looks: _raise(next(looks))
        )
        shutil.copy(photos.folder / name, inbox)
        assert (
            shoal("assign", run, inbox, "--watch", "--out", out, "--device", "cpu").exit_code == 0
        )
        (inbox / name).unlink()
    assert [row["path"] for row in csv.DictReader(io.StringIO(out.read_text()))] == [first, second]
    out.write_text("mine\n")
    refused = shoal("assign", run, inbox, "--watch", "--out", out, "--device", "cpu")
    assert refused.exit_code == 3
    assert "--force" in refused.stderr
    assert out.read_text() == "mine\n"


def _raise(error: type[BaseException] | None) -> None:
    if error is not None:
        raise error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("RUN nowhere", 3),
        ("nowhere IMAGES", 3),
        ("RUN IMAGES --outlier-share 2", 2),
        ("RUN IMAGES --device tpu", 2),
    ],
)
def test_user_errors_are_one_line(run: Path, photos, arguments: str, code: int) -> None:
    places = {"RUN": run, "IMAGES": photos.folder}
    found = shoal("assign", *[places.get(word, word) for word in arguments.split()])
    assert (found.exit_code, found.stdout) == (code, ""), found.stderr
    assert "Traceback" not in found.stderr
