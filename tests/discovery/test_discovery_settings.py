"""How flags, files and recipes are combined."""

from pathlib import Path

import pytest

from shoal.clustering.inference import InferenceSettings
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.errors import UsageError
from shoal.methods.registry import METHODS, load_recipe, read_changes
from shoal.settings import dump_settings, to_dict


def test_arguments_override_a_recipe_and_none_keeps_its_value() -> None:
    found = choose_settings(recipe="cub", epochs=3, n_clusters=7, train=None, seed=None)
    assert found.method_settings.training.epochs == 3
    assert found.method_settings.loss == load_recipe("cub").loss
    assert (found.n_clusters, found.train, found.seed) == (7, None, 0)


def test_another_encoder_has_its_default_number_of_trained_blocks() -> None:
    assert choose_settings().method_settings.n_tail_blocks == 1
    assert choose_settings(encoder="dino-vitb16").method_settings.n_tail_blocks is None
    assert choose_settings(encoder="efficientnet-lite2").method_settings.n_tail_blocks == 1


def test_the_config_of_a_run_is_read_completely(tmp_path: Path) -> None:
    settings = choose_settings(recipe="cifar100", hidden_share=0.5, seed=4, input_size=64)
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert choose_settings(config=tmp_path / "config.yaml") == settings


def test_a_config_has_the_settings_of_a_method_under_its_name(tmp_path: Path) -> None:
    for method in METHODS:
        found = choose_settings(method=method)
        assert found == DiscoverySettings(method=method, method_settings=load_recipe(method=method))
        assert [name for name in METHODS if name in to_dict(found)] == [method]
        assert found.is_trained == (method != "agglomerative")
        (tmp_path / "config.yaml").write_text(dump_settings(found))
        assert choose_settings(config=tmp_path / "config.yaml") == found


def test_a_method_other_than_the_configs_has_its_default_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump_settings(choose_settings(n_clusters=9, epochs=3)))
    found = choose_settings(config=tmp_path / "config.yaml", method="gcd")
    assert found == choose_settings(method="gcd", n_clusters=9)
    dino = choose_settings(method="gcd", recipe="dino").trained
    assert dino.training == load_recipe("dino", "gcd").training


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_protocol_applies_to_every_method(method: str) -> None:
    found = choose_settings(method=method, protocol="paper")
    assert found.method_settings.inference == InferenceSettings(rule="paper", estimate_shifts=0)
    assert found.hidden_share == 0
    ours = choose_settings(method=method, protocol="shoal")
    n_shifts = 0 if method == "agglomerative" else 1
    assert ours.method_settings.inference == InferenceSettings(
        must_link=True, try_average=True, split_mixtures=True, estimate_shifts=n_shifts
    )
    assert ours.hidden_share == DiscoverySettings().hidden_share


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"recipe": "cub", "config": "x.yaml"}, "found both"),
        ({"n_cluster": 3}, "unknown argument 'n_cluster'; did you mean 'n_clusters'"),
        ({"label": "labels.csv"}, "unknown argument 'label'; did you mean 'labels'"),
        ({"cms": 3}, "unknown argument 'cms'"),
        ({"validation_share": 1.0}, "validation_share: found 1.0"),
        ({"pixel_size": 2}, "pixel_size: found 2, expected 8 to 4,096$"),
        ({"method": "cmss"}, "did you mean 'cms'"),
        ({"protocol": "papers"}, "no protocol 'papers'; did you mean 'paper'"),
        ({"hidden_share": 1.0}, "hidden_share: found 1.0"),
        ({"seed": 1 << 32}, "seed: found 4294967296, expected a whole number from 0 to 4294967295"),
        ({"seed": "one"}, "settings: seed: found 'one', expected a whole number"),
        ({"max_minutes": "ten"}, "settings: max_minutes: found 'ten', expected a number"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_settings(**given)


def test_epochs_are_refused_if_a_config_disables_training(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump_settings(choose_settings(train=False)))
    with pytest.raises(UsageError, match="give train=True"):
        choose_settings(config=file, epochs=3)
    choose_settings(config=file, train=True, epochs=3)


def test_a_config_keeps_its_encoder_under_another_method(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump_settings(choose_settings(encoder="dino-vitb16", input_size=96)))
    for method in ("gcd", "agglomerative"):
        found = choose_settings(config=file, method=method).method_settings
        assert (found.encoder, found.input_size) == ("dino-vitb16", 96)
    assert (
        choose_settings(
            config=file, method="gcd", encoder="efficientnet-lite2"
        ).method_settings.encoder
        == "efficientnet-lite2"
    )


def test_any_setting_can_be_changed_by_name() -> None:
    found = choose_settings(
        changes={"training.batch_size": 48, "cms.training.lr": 0.5, "hidden_share": 0.4, "seed": 7}
    )
    assert (found.method_settings.training.batch_size, found.method_settings.training.lr) == (
        48,
        0.5,
    )
    assert (found.hidden_share, found.seed) == (0.4, 7)
    assert found.method_settings.encoder == choose_settings().method_settings.encoder


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hiden_share", 0.4, "unknown setting 'hiden_share'; did you mean 'hidden_share'"),
        ("training.batchsize", 8, "did you mean 'training.batch_size'"),
        ("batch_size", 64, "unknown setting 'batch_size'; did you mean 'training.batch_size'"),
        ("batchsize", 64, "unknown setting 'batchsize'; did you mean 'training.batch_size'"),
        ("train.epochs", 2, "unknown setting 'train.epochs'; did you mean 'training.epochs'"),
        ("gcd.n_init", 8, "unknown setting 'gcd.n_init'"),
        ("cms.head.width_", 1, "did you mean 'head.width'"),
        ("agglomerative.training.epochs", 1, "unknown setting 'agglomerative.training.epochs'"),
        ("training", 8, "unknown setting 'training'"),
        ("training.batch_size", "many", "batch_size: found 'many', expected a whole number"),
    ],
)
def test_invalid_changes_are_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_settings(changes={name: value})


@pytest.mark.parametrize("method", METHODS)
def test_a_range_limits_the_estimate_and_replaces_the_number_of_a_config(
    method: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(dump_settings(choose_settings(method=method, n_clusters=40)))
    for given in ("30-50", (30, 50), [30, 50]):
        found = choose_settings(config=config, n_clusters=given)
        inference = found.method_settings.inference
        assert (found.n_clusters, inference.min_clusters, inference.max_clusters) == (None, 30, 50)
    config.write_text(dump_settings(found))
    assert choose_settings(config=config) == found  # the config of a run contains the range
    assert choose_settings(config=config, n_clusters="40").n_clusters == 40
    with pytest.raises(UsageError, match="n_clusters: found"):
        choose_settings(n_clusters=(50, 30))


@pytest.mark.parametrize("written", ["30-50", "[30, 50]", "'30 - 50'"])
def test_a_range_is_equivalent_in_a_file_with_set_and_as_a_flag(
    written: str, tmp_path: Path
) -> None:
    as_flag = choose_settings(method="gcd", n_clusters="30-50")
    config = tmp_path / "config.yaml"
    config.write_text(f"n_clusters: {written}\nmethod: gcd\n")
    assert choose_settings(config=config) == as_flag
    changes = read_changes([f"n_clusters={written}"])
    assert choose_settings(method="gcd", changes=changes) == as_flag
    config.write_text(f"n_clusters: {written}\n")
    assert choose_settings(config=config, method="gcd") == as_flag  # also with another method
