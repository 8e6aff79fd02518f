"""The package under a type checker: types of results are known, unknown names are errors."""

import subprocess
import sys
from pathlib import Path

import pytest

import shoal

SCRIPT = """\
import shoal

run = shoal.discover("photos", labels="labels.csv")
n: int = run.n_clusters
name: str = run.categories[0].category
run.n_cluster
shoal.discover_all("photos")
wrong: str = run.n_clusters
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
    wrong = [line.split(":")[1] for line in own if ": error:" in line]
    assert wrong == ["6", "7", "8"], done.stdout + done.stderr
