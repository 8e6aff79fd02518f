"""Every example runs and prints the expected lines."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"

EXPECTED = {
    "folder_with_csv": ["categories", "known", "report: report.html"],
    "sklearn_pipeline": ["clusters", "All ", "unseen rows"],
    "resume": [
        "killed after epoch 1, exit code -9",
        "resumed with epoch 2",
        "the same as without the interruption: True",
    ],
    "assign_new_images": ["images 300 to 349: {", "images 350 to 399: {", "threshold"],
    "tutorial_photos": ["486 photographs in photos/, 121 labels in labels.csv"],
    "ward_alone": ["10 clusters,", "heights equal SciPy's: True", "clusters equal SciPy's: True"],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_every_example_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs_and_prints_the_expected_lines(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    printed = capsys.readouterr().out
    for line in EXPECTED[name]:
        assert line in printed
