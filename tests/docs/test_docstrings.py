"""What is public is documented as numpydoc asks: every parameter, and an example that runs."""

import doctest
import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal

DOCUMENTED = sorted({*shoal.__all__} - {"UNLABELED", "ShoalError"})
ON_PHOTOS = ("discover", "load", "refine")
"""Their examples go on from each other, in this order."""
METHODS = [
    name
    for name, of in vars(shoal.DiscoveredRun).items()
    if inspect.isfunction(of) and name[0] != "_"
]
"""Of a run; their examples go on from that of the class, in this order."""


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"(?ms)^{title}\n-+\n(.*?)(?=^\w+\n-{{3,}}\n|\Z)", inspect.cleandoc(text))
    return found[1] if found else ""


def check_parameters(of: Callable[..., object]) -> None:
    listed = re.findall(r"(?m)^\**(\w+)$", section(of.__doc__ or "", "Parameters"))
    assert listed == [
        parameter for parameter in inspect.signature(of).parameters if parameter != "self"
    ]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_parameter_is_documented_and_what_a_function_returns(name: str) -> None:
    of = getattr(shoal, name)
    check_parameters(of)
    assert section(of.__doc__, "Returns") or inspect.isclass(of)


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_of_a_method_of_a_run_is_documented_and_what_it_returns(name: str) -> None:
    of = getattr(shoal.DiscoveredRun, name)
    check_parameters(of)
    assert bool(section(of.__doc__, "Returns")) == (
        inspect.signature(of).return_annotation is not None
    )


PUBLIC_METHODS = [
    (kind.__name__, name)
    for kind in (shoal.MeanShiftClustering, shoal.WardClustering, shoal.Tree)
    for name, of in vars(kind).items()
    if inspect.isfunction(of) and name[0] != "_" and len(inspect.signature(of).parameters) > 1
]


@pytest.mark.parametrize(("kind", "name"), PUBLIC_METHODS)
def test_every_parameter_of_a_method_of_clustering_is_documented(kind: str, name: str) -> None:
    of = getattr(getattr(shoal, kind), name)
    check_parameters(of)
    assert section(of.__doc__, "Returns")


def run_examples(of: Callable[..., object], names: dict[str, object] | None = None) -> None:
    """Run the examples of a docstring with the names of its module, or with others, to which it
    adds its own."""
    assert ">>>" in section(of.__doc__ or "", "Examples")
    finder = doctest.DocTestFinder(recurse=False)
    for test in finder.find(of, of.__name__, module=inspect.getmodule(of), globs=names):
        assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
        if names is not None:
            names |= test.globs


@pytest.mark.parametrize(
    "name", [name for name in DOCUMENTED if name not in (*ON_PHOTOS, "DiscoveredRun")]
)
def test_the_example_runs(name: str) -> None:
    run_examples(getattr(shoal, name))


@pytest.mark.usefixtures("one_thread")
def test_the_examples_of_a_run_and_its_methods_run_one_after_the_other(
    same_photos, discover_same: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(discover_same(), tmp_path / "runs" / "photos")
    (tmp_path / "photos").symlink_to(same_photos.folder)
    names: dict[str, object] = {}
    for of in (shoal.DiscoveredRun, *(getattr(shoal.DiscoveredRun, name) for name in METHODS)):
        run_examples(of, names)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "photos")
def test_the_examples_on_images_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ON_PHOTOS:
        run_examples(getattr(shoal, name))
