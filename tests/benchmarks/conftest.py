"""Load the scripts of benchmarks/ as modules."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load_script():
    """Import a script by name; the scripts are removed from `sys.modules` after each test file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module
    for script in FOLDER.glob("*.py"):
        sys.modules.pop(script.stem, None)
