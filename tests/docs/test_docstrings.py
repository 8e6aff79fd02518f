"""What is public is documented as numpydoc asks: every parameter, and an example that runs."""

import doctest
import inspect
import re
from pathlib import Path

import pytest

import shoal

DOCUMENTED = sorted({*shoal.__all__} - {"UNLABELED", "ShoalError"})
ON_PHOTOS = ("discover", "load", "refine")
"""Their examples go on from each other, in this order."""


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"(?ms)^{title}\n-+\n(.*?)(?=^\w+\n-{{3,}}\n|\Z)", inspect.cleandoc(text))
    return found[1] if found else ""


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_parameter_is_documented(name: str) -> None:
    of = getattr(shoal, name)
    listed = re.findall(r"(?m)^\**(\w+)$", section(of.__doc__, "Parameters"))
    assert listed == [parameter for parameter in inspect.signature(of).parameters if parameter != "self"]


def run_examples(name: str) -> None:
    of = getattr(shoal, name)
    assert ">>>" in section(of.__doc__, "Examples")
    module = inspect.getmodule(of)
    for test in doctest.DocTestFinder(recurse=False).find(of, name, module=module):
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name not in ON_PHOTOS])
def test_the_example_runs(name: str) -> None:
    run_examples(name)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "photos")
def test_the_examples_on_images_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ON_PHOTOS:
        run_examples(name)
