import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def load_script() -> Callable[[str], ModuleType]:
    """Return a function that imports a script of docs by its path."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(Path(name).stem, FOLDER / name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
