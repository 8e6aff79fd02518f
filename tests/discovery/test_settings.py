"""Flags, files and recipes come together in one way."""

from pathlib import Path

import pytest

from shoal.discovery.settings import DiscoverySettings, choose_settings
from shoal.errors import UnknownName, UsageError
from shoal.methods.catalog import load_recipe
from shoal.settings import dump_settings


def test_nothing_said_is_the_default_recipe() -> None:
    assert choose_settings() == DiscoverySettings()
    assert choose_settings().cms == load_recipe("default")


def test_single_values_win_over_a_recipe_and_none_leaves_a_value() -> None:
    found = choose_settings(recipe="cub", epochs=3, n_clusters=7, train=None, seed=None)
    assert found.cms.training.epochs == 3
    assert found.cms.loss == load_recipe("cub").loss
    assert (found.n_clusters, found.train, found.seed) == (7, True, 0)


def test_another_encoder_brings_its_own_number_of_trained_blocks() -> None:
    assert choose_settings().cms.n_tail_blocks == 5
    assert choose_settings(encoder="dino-vitb16").cms.n_tail_blocks is None
    assert choose_settings(encoder="efficientnet-lite2").cms.n_tail_blocks == 5


def test_a_runs_config_is_read_back_whole(tmp_path: Path) -> None:
    settings = choose_settings(recipe="cifar100", n_clusters=9, seed=4, stability=2, input_size=64)
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert choose_settings(config=tmp_path / "config.yaml") == settings


def test_one_seed_decides_for_training_too() -> None:
    assert choose_settings(seed=5).seeded().training.seed == 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"recipe": "cub", "config": "x.yaml"}, "found both"),
        ({"n_cluster": 3}, "unknown setting 'n_cluster'; did you mean 'n_clusters'"),
        ({"cms": None}, "unknown setting 'cms'"),
        ({"validation_share": 1.0}, "validation_share: found 1.0"),
        ({"pixel_size": 2}, "pixel_size"),
        ({"method": "cmss"}, "did you mean 'cms'"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_settings(**given)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"known: .*cub.*default"):
        choose_settings(recipe="cubs")
