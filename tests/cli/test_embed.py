"""`shoal embed`: a file that `shoal cluster` takes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app

pytestmark = pytest.mark.usefixtures("one_thread")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])


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
    told = {"out": str(out), "n_images": 60, "n_columns": 16, "dtype": "float32", "n_skipped": 0}
    assert json.loads(run.stdout) == told
    assert run.stderr.splitlines()[-1] == f"next: shoal cluster {out}"
    clustered = invoke("cluster", out, "--n-clusters", 5, "--out", tmp_path / "run")
    assert clustered.exit_code == 0, clustered.stderr
    assert (
        clustered.stderr.splitlines()[0]
        == "60 embeddings of 16 numbers, 18 labeled in 3 categories, 42 unlabeled"
    )


def test_the_first_sentence_counts_the_files_that_are_no_images(
    photos, tiny_encoder: Path, tmp_path: Path
) -> None:
    (photos.folder / "empty.jpg").write_bytes(b"")
    run = invoke("embed", photos.folder, "--encoder", tiny_encoder, "--out", tmp_path / "x.npz")
    assert run.exit_code == 0, run.stderr
    assert run.stderr.splitlines()[0] == "60 images, none labeled, 60 unlabeled, 1 unreadable"
    assert run.stderr.count("60 images") == 1


def test_mistakes_are_one_line_and_come_before_the_work(photos, tmp_path: Path) -> None:
    (tmp_path / "there.npz").write_bytes(b"")
    for out, word in (("x.txt", "expected .npz, .npy, .parquet"), ("there.npz", "give --force")):
        run = invoke("embed", photos.folder, "--out", tmp_path / out)
        assert (run.exit_code, run.stdout) == (2, "")
        assert word in run.stderr
    run = invoke("embed", photos.folder, "--out", tmp_path / "x.npz", "--dtype", "int8")
    assert (run.exit_code, run.stdout) == (2, "")
    assert "dtype: found 'int8', expected float32 or float16" in run.stderr
    assert invoke("embed", tmp_path / "nowhere", "--out", tmp_path / "x.npz").exit_code == 3
    assert (
        invoke("embed", photos.folder, "--encoder", "nope", "--out", tmp_path / "x.npz").exit_code
        == 2
    )
