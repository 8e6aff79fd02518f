"""Each cell runs once, in an efficient order, and the failure of one does not stop the others."""

import json
from dataclasses import replace

import pytest
import torch

from patched_method import with_represent
from shoal.data.benchmarks import load_split, read_benchmark
from shoal.errors import DataError, MissingError
from shoal.methods.registry import get_method
from shoal.reproduce import loaded_dataset
from shoal.reproduce import runner as runner_module
from shoal.reproduce.experiments import get_experiment
from shoal.reproduce.plan import make_plan
from shoal.reproduce.runner import Runner, group_by_training, reproduce


def test_finished_cells_are_not_run_again(run, monkeypatch):
    run("4")

    def refuse(self, cells):
        raise AssertionError("ran again")

    monkeypatch.setattr(Runner, "_run_group", refuse)
    assert not run("4").failures


def test_tables_share_cells_and_cells_share_trainings(tmp_path, monkeypatch, stand_in):
    """Tables 1 and 4 have 14 rows of our results, 11 distinct cells and 3 representations: frozen,
    GCD and CMS."""
    learned = []

    def counting(name):
        info = get_method(name)

        def represent(*args, **kwargs):
            learned.append(name)
            return info.represent(*args, **kwargs)

        return with_represent(info, represent)

    monkeypatch.setattr(runner_module, "get_method", counting)
    found = reproduce(
        ["1", "4"],
        {"cub": "nowhere"},
        tmp_path,
        device=torch.device("cpu"),
        options=stand_in.options,
    )
    assert not any(each.failures for each in found)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 11
    assert sorted(learned) == ["agglomerative", "cms", "gcd"]


def test_cells_are_run_dataset_by_dataset_then_seed_by_seed_and_else_as_they_come(stand_in):
    """In this order, images are decoded once per dataset, and pools of views computed once per
    seed."""
    cells = [
        cell
        for name in ("14", "2", "12")
        for cell in make_plan(get_experiment(name), ["cars", "cub"], (1, 0), stand_in.options).cells
    ]
    firsts = [group[0] for group in group_by_training(cells)]
    order = [(cell.dataset, cell.settings.training.seed, cell.setup) for cell in firsts]
    assert list(dict.fromkeys(order)) == [
        (dataset, seed, setup)
        for dataset in ("cars", "cub")
        for seed in (0, 1)
        for setup in ("inductive", "transductive")
    ]
    shares = [cell.settings.loss.supervised_weight for cell in firsts if cell.setup != "inductive"]
    assert shares[:3] == [0.25, 0.35, 0.5]


WHOLE = {
    "images": 60,
    "notes": [],
    "collapse": None,
    "n_clusters": 6,
    "n_clusters_error": 0.0,
    "accuracy": {"all": 50.0, "known": 60.0, "novel": 40.0},
    "recall": {"all": 50.0, "labeled": 60.0, "unlabeled": 40.0},
}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        json.dumps({**WHOLE, "n_clusters": "six"}),
        json.dumps({**WHOLE, "accuracy": {"all": 50.0}}),
        json.dumps({**WHOLE, "recall": 3}),
        json.dumps({name: value for name, value in WHOLE.items() if name != "accuracy"}),
        json.dumps({name: value for name, value in WHOLE.items() if name != "notes"}),
    ],
)
def test_a_broken_cell_is_named_before_anything_is_run(
    run, tmp_path, stand_in, monkeypatch, content
):
    cells = make_plan(get_experiment("14"), ["cub"], [0], stand_in.options).cells
    (tmp_path / "cells").mkdir()
    file = tmp_path / "cells" / f"{cells[-1].key}.json"
    file.write_text(content)
    monkeypatch.setattr(Runner, "_run_group", lambda self, group: pytest.fail("ran"))
    with pytest.raises(DataError, match=file.name):
        run("14", out=tmp_path)


def test_weights_that_are_not_there_are_found_before_the_first_training(
    run, tmp_path, stand_in, monkeypatch
):
    """Tables 1 and 15 use different encoders, and the weights of the second are missing."""
    original = runner_module.load_encoder

    def load(name, **options):
        if name == "clip-vitb16":
            raise MissingError("clip-vitb16: no weights")
        return original(name, **options)

    monkeypatch.setattr(runner_module, "load_encoder", load)
    monkeypatch.setattr(Runner, "_run_group", lambda self, group: pytest.fail("ran"))
    options = {"device": torch.device("cpu"), "options": replace(stand_in.options, encoder=None)}
    with pytest.raises(MissingError):
        reproduce(["1", "15"], {"cub": "nowhere"}, tmp_path, **options)


def write_cub(root):
    """Write CUB's official tree of empty files: a training and a test image for each of 200
    classes."""
    classes = load_split("cub").class_names
    names = [f"{name}/{part}.jpg" for name in classes for part in ("train", "test")]
    columns = {
        "images": names,
        "image_class_labels": [1 + i // 2 for i in range(400)],
        "train_test_split": [1 - i % 2 for i in range(400)],
        "classes": classes,
    }
    for name, values in columns.items():
        (root / f"{name}.txt").write_text(
            "".join(f"{i + 1} {value}\n" for i, value in enumerate(values))
        )
    for name in names:
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "images" / name).write_bytes(b"")
    return [root / "images" / name for name in names]


@pytest.mark.parametrize(
    ("table", "lost", "is_refused"),
    [("1", "train.jpg", True), ("1", "test.jpg", False), ("2", "test.jpg", True)],
)
def test_a_folder_that_lacks_one_image_is_refused_before_the_first_training(
    run, tmp_path, monkeypatch, table, lost, is_refused
):
    """The layout is complete, but one of the listed images is missing."""
    images = write_cub(tmp_path)
    next(image for image in reversed(images) if image.name == lost).unlink()
    monkeypatch.setattr(loaded_dataset, "read_benchmark", read_benchmark)
    began = []
    monkeypatch.setattr(Runner, "_run_group", lambda self, group: began.append(group))
    if is_refused:
        with pytest.raises(DataError):
            run(table, out=tmp_path / "out", roots={"cub": tmp_path})
        assert not began
    else:
        run(table, out=tmp_path / "out", roots={"cub": tmp_path})
        assert began
