"""The fuzzer finds what it is made to find."""

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
    """The names of the fuzzer's parts."""
    parts = [vars(load_script(part)) for part in ("fuzz_inputs", "fuzz_runs", "fuzz")]
    return SimpleNamespace(**{name: value for part in parts for name, value in part.items()})


def test_the_same_seed_gives_the_same_faults_and_something_always_changes(fuzz) -> None:
    content = bytes(range(256)) * 4
    made = [[fuzz.mutate(content, random.Random(seed)) for seed in range(200)] for _ in range(2)]
    assert made[0] == made[1]
    assert sum(broken != content for broken in made[0]) > 190


def test_a_reader_that_trips_is_a_fault_and_the_sound_file_is_put_back(
    fuzz, tmp_path: Path
) -> None:
    file = tmp_path / "x.npy"
    faults = []
    np.save(file, np.ones(3))
    sound = file.read_bytes()
    assert fuzz.try_input(file, lambda file: 1 // 0, random.Random(0), faults) == "traceback"
    assert "ZeroDivisionError" in faults[0]
    assert file.read_bytes() == sound


def test_files_that_differ_or_are_missing_are_named(fuzz, tmp_path: Path) -> None:
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
