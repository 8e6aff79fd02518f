import pytest

from shoal.methods.registry import METHODS, PROTOCOLS, follow_protocol, load_recipe


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_follows_every_protocol_and_twice_is_once(method, protocol):
    once = follow_protocol(load_recipe(method=method), protocol, method)
    assert once.inference.rule == PROTOCOLS[protocol]["inference.rule"]
    assert follow_protocol(once, protocol, method) == once


def test_the_released_code_of_dccl_counts_an_image_among_its_fifteen_neighbors():
    for recipe in ("default", "dino"):
        found = follow_protocol(load_recipe(recipe, "dccl"), "reference", "dccl")
        assert found.n_neighbors == load_recipe("dino", "dccl").n_neighbors == 14


def test_the_released_codes_protocol_is_its_losses_head_bank_and_views():
    found = follow_protocol(load_recipe("cub"), "reference", "cms")
    assert (found.loss.denominator, found.loss.detach_norm) == ("reference", True)
    assert (found.head.kind, found.bank) == ("bottleneck", "views")
    assert found.training.views.jitter == 0
    assert (found.inference.rule, found.inference.estimate_shifts) == ("paper", 0)
    recipe = load_recipe("cub")
    assert (found.loss.temperature, found.training.lr) == (
        recipe.loss.temperature,
        recipe.training.lr,
    )
