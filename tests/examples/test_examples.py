"""Every example runs and prints what it promises."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"

PROMISED = {
    "folder_with_csv": ["categories", "known", "report: report.html"],
    "sklearn_pipeline": ["clusters", "All ", "rows that came later"],
    "resume": [
        "killed after epoch 1, exit code -9",
        "resumed with epoch 2",
        "the same as without the interruption: True",
    ],
    "assign_new_images": ["images 300 to 349: {", "images 350 to 399: {", "threshold"],
    "ward_alone": ["10 clusters", "heights as SciPy's: True", "the cut at 10 as SciPy's: True"],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))


def test_every_example_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(PROMISED)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISED)
def test_an_example_runs_and_prints_what_it_promises(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    printed = capsys.readouterr().out
    for words in PROMISED[name]:
        assert words in printed
