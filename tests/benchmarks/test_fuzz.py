"""The fuzzer is reproducible and reports failures."""

import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def fuzz(load_script):
    """Everything that the modules of the fuzzer define, in one namespace."""
    parts = [vars(load_script(part)) for part in ("fuzz_inputs", "fuzz_runs", "fuzz")]
    return SimpleNamespace(**{name: value for part in parts for name, value in part.items()})


def test_mutations_are_reproducible_and_nearly_always_change_the_content(fuzz) -> None:
    content = bytes(range(256)) * 4
    made = [[fuzz.mutate(content, random.Random(seed)) for seed in range(200)] for _ in range(2)]
    assert made[0] == made[1]
    assert sum(broken != content for broken in made[0]) > 190


def test_an_exception_of_a_reader_is_a_failure_and_the_valid_file_is_restored(
    fuzz, tmp_path: Path
) -> None:
    file = tmp_path / "x.npy"
    failures = []
    np.save(file, np.ones(3))
    valid = file.read_bytes()
    assert fuzz.try_input(file, lambda file: 1 // 0, random.Random(0), failures) == "traceback"
    assert "ZeroDivisionError" in failures[0]
    assert file.read_bytes() == valid


def test_different_and_missing_files_are_listed(fuzz, tmp_path: Path) -> None:
    for place, text in (("run", "1"), ("whole", "2")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.csv").write_text(text)
        (tmp_path / place / "train.log").write_text(text)
    (tmp_path / "whole" / "b.csv").touch()
    assert fuzz.differences(tmp_path / "run", tmp_path / "whole") == ["a.csv", "b.csv"]


@pytest.mark.slow
def test_inputs_and_kills_are_shared_among_processes(tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / "fuzz.py", "--inputs", "20", "--kills", "4", "--jobs", "2"]
    env = os.environ | {"PYTHONPATH": str(FOLDER.parent / "src")}
    record = tmp_path / "record.md"
    done = subprocess.run(
        [*command, "--record", record], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    found = {
        line.split("|")[1].strip(): line
        for line in record.read_text().splitlines()
        if line.startswith("| ")
    }
    inputs = {"images", "tables", "configs", "embeddings", "run folders"}
    assert inputs | {"kills", "full disks"} < set(found)
    assert "lost" not in record.read_text()
    assert int(found["kills"].split(" killed")[0].rpartition(" ")[2]) >= 4
