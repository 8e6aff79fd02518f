"""The scripts that measure `shoal discover` and engines run, with a handful of images."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.slow
def test_discover_has_a_row_for_every_stage(tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(FOLDER / "discover.py"),
        "--n",
        "24",
        "--record",
        str(tmp_path / "record.md"),
    ]
    subprocess.run(
        [*script, "--", "--no-train", "--n-clusters", "5"], check=True, capture_output=True
    )
    record = (tmp_path / "record.md").read_text(encoding="utf-8")
    for stage in (
        "start: imports",
        "decoding images",
        "embedding images",
        "finding categories",
        "writing the",
        "all |",
    ):
        assert record.count(f"\n| {stage}") == 1


@pytest.mark.slow
def test_engines_has_a_row_for_every_engine(load_script) -> None:
    script = load_script("engines")
    rows = script.time_trunks("efficientnet-lite0", n_images=2, rounds=1)
    assert [row.split()[1] for row in rows[2:]] == script.engines_here()
