"""The script that times `shoal discover` records every stage, run on 24 images."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.slow
def test_discover_has_a_row_for_every_stage(tmp_path: Path) -> None:
    record = tmp_path / "record.md"
    script = [sys.executable, FOLDER / "discover.py", "--n", "24", "--record", record]
    discover = ["--", "--no-train", "--n-clusters", "5"]
    subprocess.run([*script, *discover], check=True, capture_output=True)
    stages = ("decoding images", "embedding images", "finding categories", "writing the", "all |")
    for stage in ("start: imports", *stages):
        assert record.read_text(encoding="utf-8").count(f"\n| {stage}") == 1
