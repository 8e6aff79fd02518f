"""Hidden labels have one way in: `shoal evaluate`, whose answer reaches nothing that was chosen before."""

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from shoal.cli.main import app

CHOSEN = ("assignments.csv", "categories.csv", "embeddings.npy", "tree.npy", "estimate.json", "shifts.json")


def call(*arguments: object) -> str:
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 0, found.stderr
    return found.stdout


def cluster_and_evaluate(folder: Path, x: np.ndarray, y: np.ndarray, truth: np.ndarray) -> tuple[dict[str, bytes], str]:
    """What `shoal cluster` chose, read after `shoal evaluate` has seen the truth, and what the latter said."""
    folder.mkdir()
    names = [f"img-{i:02d}" for i in range(len(x))]
    np.savez(folder / "features.npz", X=x, y=y, paths=names)
    lines = [f"{name},{label}\n" for name, label in zip(names, truth, strict=True)]
    (folder / "truth.csv").write_text("path,label\n" + "".join(lines))
    call("cluster", folder / "features.npz", "--out", folder / "run", "--device", "cpu")
    score = call("evaluate", folder / "run", "--truth", folder / "truth.csv")
    return {name: (folder / "run" / name).read_bytes() for name in CHOSEN}, score


def test_a_scrambled_truth_changes_the_score_and_no_bit_of_the_answer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(90) % 6
    x = (np.eye(6)[truth] + 0.25 * rng.normal(size=(90, 6))).astype(np.float32)
    is_labeled = (truth < 4) & (np.arange(90) < 45)
    y = np.where(is_labeled, truth.astype(str), "")
    scrambled = truth.copy()
    scrambled[~is_labeled] = rng.permutation(truth[~is_labeled])
    one, score = cluster_and_evaluate(tmp_path / "true", x, y, truth)
    other, scrambled_score = cluster_and_evaluate(tmp_path / "scrambled", x, y, scrambled)
    assert one == other
    assert score != scrambled_score
