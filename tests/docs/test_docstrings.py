"""Public names have numpydoc docstrings with every parameter and an example that runs."""

import doctest
import inspect
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import shoal
from shoal.clustering.n_clusters import NClustersEstimate
from shoal.discovery.discovered_run import Score
from shoal.report.figures import new_figure
from shoal.runs import Assignment, Category

DOCUMENTED = sorted({*shoal.__all__} - {"UNLABELED", "ShoalError"})

# Each of their examples continues the previous one
ON_PHOTOS = ("discover", "load", "refine")

# Methods of a run; each of their examples continues the previous one, the first that of the class
METHODS = [
    name
    for name, member in vars(shoal.DiscoveredRun).items()
    if inspect.isfunction(member) and name[0] != "_"
]


def section(text: str, title: str) -> str:
    """Return the text under a heading of a docstring."""
    found = re.search(rf"(?ms)^{title}\n-+\n(.*?)(?=^\w+\n-{{3,}}\n|\Z)", inspect.cleandoc(text))
    return found[1] if found else ""


def check_parameters(function: Callable[..., object]) -> None:
    listed = re.findall(r"(?m)^\**(\w+)$", section(function.__doc__ or "", "Parameters"))
    assert listed == [
        parameter for parameter in inspect.signature(function).parameters if parameter != "self"
    ]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_parameters_and_return_values_are_documented(name: str) -> None:
    public = getattr(shoal, name)
    check_parameters(public)
    assert section(public.__doc__, "Returns") or inspect.isclass(public)


@pytest.mark.parametrize("kind", [Assignment, Category, Score, NClustersEstimate])
def test_fields_of_returned_objects_are_documented(kind: type) -> None:
    listed = re.findall(r"(?m)^(\w+)$", section(kind.__doc__ or "", "Attributes"))
    assert listed == [field.name for field in fields(kind)]


@pytest.mark.parametrize("name", METHODS)
def test_parameters_and_return_values_of_methods_of_a_run_are_documented(name: str) -> None:
    method = getattr(shoal.DiscoveredRun, name)
    check_parameters(method)
    assert bool(section(method.__doc__, "Returns")) == (
        inspect.signature(method).return_annotation is not None
    )


PUBLIC_METHODS = [
    (kind.__name__, name)
    for kind in (shoal.MeanShiftClustering, shoal.WardClustering, shoal.Tree)
    for name, member in vars(kind).items()
    if inspect.isfunction(member)
    and name[0] != "_"
    and len(inspect.signature(member).parameters) > 1
]


@pytest.mark.parametrize(("kind", "name"), PUBLIC_METHODS)
def test_parameters_and_return_values_of_estimators_are_documented(kind: str, name: str) -> None:
    method = getattr(getattr(shoal, kind), name)
    check_parameters(method)
    assert section(method.__doc__, "Returns")


def run_examples(public: Callable[..., object], names: dict[str, object] | None = None) -> None:
    """Run the examples of a docstring with the names of its module, or with `names`, to which the
    examples add their own."""
    assert ">>>" in section(public.__doc__ or "", "Examples")
    finder = doctest.DocTestFinder(recurse=False)
    module = inspect.getmodule(public)
    for test in finder.find(public, public.__name__, module=module, globs=names):
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
    monkeypatch.setattr("shoal.report.figures.new_figure", new_figure)  # `run.plot` draws one
    monkeypatch.chdir(tmp_path)
    shutil.copytree(discover_same(), tmp_path / "runs" / "photos")
    (tmp_path / "photos").symlink_to(same_photos.folder)
    names: dict[str, object] = {}
    run_examples(shoal.DiscoveredRun, names)
    for name in METHODS:
        run_examples(getattr(shoal.DiscoveredRun, name), names)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "photos")
def test_the_examples_on_images_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ON_PHOTOS:
        run_examples(getattr(shoal, name))
