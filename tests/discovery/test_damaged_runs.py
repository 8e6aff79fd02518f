"""On a run with a damaged file, every command succeeds or names that file, without a traceback."""

import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import write_table
from photo_runs import run_on
from shoal.cli.main import app
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.trained.evaluation import Choice, HeldOutAccuracy
from shoal.report.figures import new_figure

pytestmark = pytest.mark.usefixtures("one_thread")

Damage = Callable[[Path], None]

EVALUATED = HeldOutAccuracy(n_shifts=1, is_correct=np.arange(9) < 7)


def replaced(old: str, new: str) -> Damage:
    def edit(file: Path) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return edit


def half(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


ANY: dict[str, Damage] = {
    "junk": lambda file: file.write_bytes(b"\xff\x00junk\xfe" * 3),
    "empty": lambda file: file.write_bytes(b""),
    "half": half,
    "list": lambda file: file.write_text("[1, 2]"),
    "gone": Path.unlink,
}
OWN: dict[str, dict[str, Damage]] = {
    "provenance.json": {},
    "estimate.json": {},
    "shifts.json": {},
    "calibration.json": {},
    "choice.json": {},
    "metrics.jsonl": {},
    "config.yaml": {
        "name": replaced("n_neighbors", "neighborhood"),
        "number": replaced("n_neighbors: 4", "n_neighbors: four"),
        "method": replaced("method: cms", "method: 3"),
    },
    "assignments.csv": {
        "words": replaced("false", "perhaps"),
        "ids": replaced(",0,blue", ",99,blue"),
        "rows": lambda file: file.write_text("\n".join(file.read_text().splitlines()[:-5]) + "\n"),
    },
    "categories.csv": {"ids": replaced("\n1,", "\n7,"), "exemplars": replaced('"[', '"{')},
    "embeddings.npy": {
        "shape": lambda file: np.save(file, np.ones((3, 2), np.float32)),
        "text": lambda file: np.save(file, np.array(["a", "b"])),
    },
    "shifted.npy": {"flat": lambda file: np.save(file, np.ones(7))},
    "tree.npy": {"not a tree": lambda file: np.save(file, np.full((59, 4), -3.0))},
    "frozen.npy": {"shape": lambda file: np.save(file, np.ones((3, 2), np.float32))},
    "thumbnails.bin": {},
    "model.safetensors": {},
    "model.json": {},
    "skipped.csv": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("n_each", [1, 7])
def test_every_command_on_a_damaged_run_succeeds_or_names_the_file(
    photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_each: int
) -> None:
    """Every damage with every command; without --slow, each damage with one of the seven
    commands."""
    (photos.folder / "zzz.png").write_bytes(b"")
    config = choose_settings(config=photos.config)
    made = run_on(photos, tmp_path / "whole", config)
    monkeypatch.setattr("shoal.report.figures.new_figure", new_figure)  # files of figures
    made.write_json(
        "choice", Choice(hidden=("red",), frozen=EVALUATED, trained=EVALUATED).to_dict()
    )
    whole = made.path
    truth = write_table(tmp_path / "truth.csv", photos.truth)
    run = tmp_path / "run"
    out = tmp_path / "out"
    photos_of = [photos.folder, "--labels", photos.labels, "--config", whole / "config.yaml"]
    commands = {
        "report": ["report", run, "--figures", out],
        "evaluate": ["evaluate", run, "--truth", truth],
        "assign": ["assign", run, photos.folder, "--device", "cpu"],
        "csv": ["export", run, "--to", "csv", "--out", out],
        "projector": ["export", run, "--to", "projector", "--out", out],
        "labelstudio": ["export", run, "--to", "labelstudio", "--out", out],
        "resume": ["discover", *photos_of, "--out", run, "--resume", "--device", "cpu", "--json"],
    }
    turn = cycle(commands)
    wrong = []
    for part in OWN:
        for damage, edit in {**ANY, **OWN[part]}.items():
            for name in [next(turn) for _ in range(n_each)]:
                words = commands[name]
                shutil.rmtree(run, ignore_errors=True)
                shutil.rmtree(out, ignore_errors=True)
                shutil.copytree(whole, run)
                edit(run / part)
                ended = CliRunner().invoke(app, [str(word) for word in words])
                text = ended.stderr.strip().splitlines()[-1] if ended.exit_code else ""
                if ended.exit_code not in (0, 2, 3) or (
                    ended.exit_code == 3 and part.split(".")[0] not in text
                ):
                    wrong.append(f"{part} {damage}: {name} ended with {ended.exit_code}: {text}")
    assert not wrong, "\n".join(wrong)
