"""The scripts of benchmarks/ as modules."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load_script():
    """Import a script by its name, with those that it imports; all are forgotten after the tests of
    a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module
    for script in FOLDER.glob("*.py"):
        sys.modules.pop(script.stem, None)
