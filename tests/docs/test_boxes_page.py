"""The commands on the page about boxes run as printed."""

import csv
import re
import shlex
import shutil
from pathlib import Path

import pytest

from commands import shoal
from conftest import write_table
from pasted_photos import paste_photos, write_megadetector

PAGE = Path(__file__).resolve().parents[2] / "docs" / "boxes.md"


def test_the_walk_through_runs(tmp_path: Path, photos, monkeypatch: pytest.MonkeyPatch) -> None:
    pasted = paste_photos(tmp_path / "single", tmp_path / "traps", 60)
    later = pasted[-10:]
    write_megadetector(tmp_path / "detections.json", pasted)
    write_megadetector(tmp_path / "new.json", later)
    write_table(tmp_path / "truth.csv", {each.item: each.truth for each in pasted})
    write_table(tmp_path / "labels.csv", {each.item: each.label for each in pasted if each.label})
    shutil.copytree(tmp_path / "traps", tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        command = shlex.split(line)[1:]
        if command[0] == "discover":  # a tiny encoder, so that it takes seconds
            command += ["--config", str(photos.config)]
        if command[0] in ("discover", "assign"):
            command += ["--device", "cpu"]
        run = shoal(*command)
        assert run.exit_code == 0, run.stderr
    with (tmp_path / "new.csv").open(encoding="utf-8", newline="") as file:
        assigned = {row["path"]: row for row in csv.DictReader(file)}
    assert set(assigned) == {each.item for each in later}
    assert all(int(assigned[each.item]["x"]) == each.box.x for each in later)


def test_bad_boxes_are_refused_in_one_line(tmp_path: Path, photos) -> None:
    (tmp_path / "boxes.csv").write_text("path,x,y,width,height\nx.png,1,one,1,1\n")
    run = shoal("discover", photos.folder, "--boxes", tmp_path / "boxes.csv")
    assert run.exit_code == 3
    assert "boxes.csv, line 2" in run.stderr.splitlines()[-1]
