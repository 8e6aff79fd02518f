from dataclasses import replace

import pytest

from shoal.data.benchmarks import BENCHMARKS
from shoal.errors import UsageError
from shoal.methods.registry import (
    METHODS,
    load_recipe,
    recipe_for,
    recipe_names,
)
from shoal.settings import to_dict

GENERIC = ["cifar10", "cifar100", "imagenet100"]
FINE = ["cub", "aircraft", "herbarium19", "cars"]
BENCHMARK_RECIPES = [name + end for name in [*GENERIC, *FINE] for end in ("", "-clip")]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_default_recipe_that_needs_no_download(name):
    settings = load_recipe(method=name)
    assert settings.encoder == "efficientnet-lite2"
    assert settings.input_size is None
    assert settings.inference.rule == "pairs"


def test_there_is_a_recipe_for_each_benchmark_and_a_default():
    assert recipe_names() == sorted(
        [*BENCHMARK_RECIPES, "cpu", "default", "fine-grained", "generic", "gpu"]
    )
    assert set(BENCHMARKS) == {*GENERIC, *FINE}


def test_the_recipe_follows_the_family_of_the_encoder():
    assert recipe_for("cub", "dino-vitb16") == "cub"
    assert recipe_for("cub", "clip-vitb16") == "cub-clip"
    assert recipe_for("cub", "efficientnet-lite2") == recipe_for("cub", "/models/dino") == "default"
    assert recipe_for("cub", "dino-vitb16", "gcd") == "dino"
    assert recipe_for("cub", "clip-vitb16", "agglomerative") == "clip"


@pytest.mark.parametrize(
    ("method", "benchmark", "values"),
    [
        *(
            ("simgcd", name, {"entropy_weight": 1.0})
            for name in ("imagenet100", "cars", "aircraft", "herbarium19")
        ),
        ("simgcd", "cub", {"entropy_weight": 2.0}),
        ("simgcd", "cifar100", {"entropy_weight": 4.0}),
        ("promptcal", "cub", {"n_neighbors": 5, "quantile": 0.8, "restarts_lr": True}),
        ("promptcal", "cifar100", {"n_neighbors": 10, "quantile": 0.5, "first_stage": 0.74074}),
        ("promptcal", "imagenet100", {"n_neighbors": 10, "quantile": 0.5, "first_stage": 0.58824}),
        (
            "promptcal",
            "herbarium19",
            {
                "n_neighbors": 7,
                "quantile": 0.8,
                "first_stage": 0.5,
                "memory_size": 20000,
                "n_negatives": 5000,
            },
        ),
        ("rankstats", "cifar10", {"consistency_weight": 5.0, "consistency_ramp": 0.25}),
        ("rankstats", "cifar100", {"consistency_weight": 50.0, "consistency_ramp": 0.75}),
    ],
    ids=str,
)
def test_values_that_were_published_for_a_benchmark_are_those_of_its_recipe(
    method, benchmark, values
):
    found = to_dict(load_recipe(recipe_for(benchmark, "dino-vitb16", method), method))
    usual = to_dict(load_recipe("dino", method))
    assert {name: found[name] for name in values} == values
    assert {name for name in found if found[name] != usual[name]} <= {*values, "training"}


def test_a_recipe_of_a_benchmark_comes_before_that_of_its_kind_and_has_one_with_clip_too():
    found = load_recipe("imagenet100-clip", "promptcal")
    with_dino = load_recipe("imagenet100", "promptcal")
    assert found == replace(
        with_dino, encoder="clip-vitb16", training=replace(with_dino.training, lr=0.01)
    )
    assert found.training.epochs == 170
    assert load_recipe("cifar10-clip", "promptcal").training.epochs == 270
    assert len(recipe_names("promptcal")) == len(set(recipe_names("promptcal")))


@pytest.mark.parametrize("encoder", ["dino", "clip"])
def test_the_recipes_of_gcd_hold_its_published_values(encoder):
    settings = load_recipe(encoder, "gcd")
    assert settings.encoder == f"{encoder}-vitb16"
    assert (settings.loss.temperature, settings.loss.supervised_temperature) == (1.0, 0.07)
    assert settings.loss.supervised_weight == 0.35
    assert (settings.training.lr, settings.training.lr * settings.training.min_lr) == (
        0.1,
        pytest.approx(1e-4),
    )
    assert (settings.head.dim, settings.n_init) == (65536, 100)


@pytest.mark.parametrize(
    ("names", "temperature", "lr", "min_lr"),
    [(GENERIC, 0.3, 0.01, 0.001), (FINE, 0.25, 0.05, 0.005)],
)
def test_the_recipes_hold_the_papers_values(names, temperature, lr, min_lr):
    for name in [name + end for name in names for end in ("", "-clip")]:
        settings = load_recipe(name)
        assert settings.encoder == ("clip-vitb16" if name.endswith("-clip") else "dino-vitb16")
        assert (settings.loss.temperature, settings.training.lr, settings.training.min_lr) == (
            temperature,
            lr,
            min_lr,
        )
        assert (settings.loss.supervised_temperature, settings.loss.supervised_weight) == (
            0.07,
            0.35,
        )
        assert (settings.training.epochs, settings.training.batch_size) == (200, 128)
        assert (settings.training.momentum, settings.training.weight_decay) == (0.9, 5e-5)
        assert (settings.inference.rule, settings.inference.estimate_shifts) == ("paper", 0)
        assert (settings.inference.shift.n_neighbors, settings.inference.shift.alpha) == (8, 0.5)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("loss: {temperature: -1}", "temperature: found -1"),
        ("loss: {supervised_weight: 1.5}", "supervised_weight: found 1.5"),
        ("bank: rows", "bank: found 'rows'"),
        (
            "bank: views\ninference: {shift: {retrieval: random}}",
            "supports only the k nearest",
        ),
        ("heads: {}", "unknown setting 'heads'; did you mean 'head'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, text, named):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(UsageError, match=named):
        load_recipe(str(tmp_path / "own.yaml"))
