"""`shoal embed`: write a file for `shoal cluster`."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from commands import shoal

pytestmark = pytest.mark.usefixtures("one_thread")


def invoke(*arguments: object) -> Result:
    return shoal(*arguments, "--device", "cpu")


def test_embed_then_cluster(photos, tiny_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "features.npz"
    run = invoke(
        "embed",
        photos.folder,
        "--labels",
        photos.labels,
        "--encoder",
        tiny_encoder,
        "--out",
        out,
        "--json",
    )
    assert run.exit_code == 0, run.stderr
    expected = {
        "out": str(out),
        "n_images": 60,
        "n_columns": 16,
        "n_skipped": 0,
    }
    assert json.loads(run.stdout) == expected
    clustered = invoke("cluster", out, "--n-clusters", 5, "--out", tmp_path / "run")
    assert clustered.exit_code == 0, clustered.stderr
    assert (
        clustered.stderr.splitlines()[0]
        == "60 embeddings of 16 numbers, 18 labeled in 3 categories, 42 unlabeled"
    )


def test_user_errors_are_raised_before_the_work(photos, tmp_path: Path) -> None:
    (tmp_path / "there.npz").write_bytes(b"")
    for folder, out, flags, code in (
        (photos.folder, "x.txt", "", 2),
        (photos.folder, "there.npz", "", 2),
        (photos.folder, "there.npz/x.npz", "", 2),
        (photos.folder, "x.npz", "--encoder nope", 2),
        (tmp_path / "nowhere", "x.npz", "", 3),
    ):
        run = invoke("embed", folder, "--out", tmp_path / out, *flags.split())
        assert (run.exit_code, run.stdout) == (code, ""), run.stderr
    assert not (tmp_path / "x.npz").exists()
