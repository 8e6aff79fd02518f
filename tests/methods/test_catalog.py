import pytest

from shoal.errors import UnknownName, UsageError
from shoal.methods.catalog import DEFAULT_METHOD, METHODS, get_method, load_recipe, recipe_names
from shoal.methods.cms import CmsSettings
from shoal.settings import dump_settings, load_settings

GENERIC, FINE = ["cifar100", "imagenet100"], ["cub", "fgvc-aircraft", "herbarium19", "stanford-cars"]


def test_every_method_is_found_by_its_name():
    assert DEFAULT_METHOD in METHODS
    assert get_method("cms").settings is CmsSettings


def test_an_unknown_method_lists_the_nearest():
    with pytest.raises(UnknownName, match="no method 'cmss'; did you mean 'cms'"):
        get_method("cmss")


def test_there_is_a_recipe_for_each_benchmark_one_for_the_demo_and_a_default():
    assert recipe_names() == sorted([*GENERIC, *FINE, "default", "digits"])


@pytest.mark.parametrize(
    ("names", "temperature", "lr", "min_lr"), [(GENERIC, 0.3, 0.01, 0.001), (FINE, 0.25, 0.05, 0.005)]
)
def test_the_recipes_hold_the_papers_values(names, temperature, lr, min_lr):
    for name in names:
        settings = load_recipe(name)
        assert settings.encoder == "dino-vitb16"
        assert (settings.loss.temperature, settings.training.lr, settings.training.min_lr) == (temperature, lr, min_lr)
        assert (settings.loss.supervised_temperature, settings.loss.supervised_weight) == (0.07, 0.35)
        assert (settings.training.epochs, settings.training.batch_size) == (200, 128)
        assert (settings.training.momentum, settings.training.weight_decay) == (0.9, 5e-5)
        assert (settings.inference.rule, settings.inference.estimate_shifts) == ("paper", 0)
        assert settings.estimate_on == "validation"
        assert (settings.inference.shift.n_neighbors, settings.inference.shift.alpha) == (8, 0.5)


def test_the_default_recipe_needs_no_download():
    assert load_recipe().encoder == "efficientnet-lite2"


@pytest.mark.parametrize("name", [*GENERIC, *FINE, "default"])
def test_a_recipe_survives_being_written_and_read(tmp_path, name):
    file = tmp_path / "config.yaml"
    file.write_text(dump_settings(load_recipe(name)))
    assert load_settings(CmsSettings, file) == load_recipe(name)
    assert load_recipe(str(file)) == load_recipe(name)


def test_an_unknown_recipe_lists_the_nearest():
    with pytest.raises(UnknownName, match="no recipe 'cifar10'; did you mean 'cifar100'"):
        load_recipe("cifar10")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("loss: {temperature: -1}", "loss.temperature: found -1"),
        ("loss: {supervised_weight: 1.5}", "expected λ in"),
        ("training: {bank: rows}", "bank: found 'rows'"),
        ("loss: {detach_norm: true}\ninference: {shift: {kernel: gaussian}}", "detach_norm goes with the plain mean"),
        ("training: {bank: views}\ninference: {shift: {retrieval: random}}", "goes with the k nearest only"),
        ("heads: {}", "unknown setting 'heads'; did you mean 'head'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, text, named):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(UsageError, match=named):
        load_recipe(str(tmp_path / "own.yaml"))
