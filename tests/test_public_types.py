"""The package under a type checker: types of results are known, unknown names are errors."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.discovery.discovery_settings import (
    COMMON_FIELDS,
    FIELDS,
    DiscoverArguments,
    SettingArguments,
    SharedArguments,
    choose_settings,
)

SCRIPT = """\
import shoal

run = shoal.discover("photos", labels="labels.csv", n_clusters=(30, 50), train=False, force=True)
n: int = run.n_clusters
name: str = run.categories[0].category
run.n_cluster  # wrong
shoal.discover_all("photos")  # wrong
text: str = run.n_clusters  # wrong
shoal.discover("photos", forced=True)  # wrong
shoal.discover("photos", epochs="12")  # wrong
shoal.refine(run=run, n_clusters=40, out="better", changes={"training.lr": 0.1})
shoal.refine(run, reviev="runs/photos")  # wrong
shoal.compare("photos", methods=["cms", "gcd"], encoder="dino-vits16")
shoal.compare("photos", method="cms")  # wrong
run.export("imagefolder", "sorted", copy=True)
run.export("csv", "tables", force=True)  # wrong
"""


@pytest.mark.slow
def test_a_script_of_a_user_is_checked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", script.name]
    sources = str(Path(shoal.__file__).parents[1])
    done = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": sources}, capture_output=True, text=True
    )
    own = [line for line in done.stdout.splitlines() if line.startswith(script.name)]
    found = [int(line.split(":")[1]) for line in own if ": error:" in line]
    wrong = [i for i, line in enumerate(SCRIPT.splitlines(), start=1) if line.endswith("# wrong")]
    assert found == wrong, done.stdout + done.stderr


def test_the_typed_arguments_are_those_of_the_functions() -> None:
    settings = set(inspect.signature(choose_settings).parameters) - {"values"} | FIELDS
    assert set(SettingArguments.__annotations__) == settings
    taken_by_refine = set(inspect.signature(shoal.discover).parameters) | settings
    own = {"images", "labels", "review", "settings"}
    assert set(DiscoverArguments.__annotations__) == taken_by_refine - own
    in_comparisons = COMMON_FIELDS | {"epochs", "changes", "encoder", "input_size", "config"}
    assert set(SharedArguments.__annotations__) == in_comparisons
