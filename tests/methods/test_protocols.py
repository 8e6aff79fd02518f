import pytest

from shoal.errors import UnknownName
from shoal.methods.protocols import PROTOCOLS, follow_protocol, get_protocol
from shoal.methods.registry import METHODS, load_recipe


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_follows_every_protocol_and_twice_is_once(method, protocol):
    once = follow_protocol(load_recipe(method=method), protocol, method)
    assert once.inference.rule == PROTOCOLS[protocol]["inference"]["rule"]
    assert follow_protocol(once, protocol, method) == once


def test_the_released_codes_protocol_is_its_losses_head_bank_and_views():
    found = follow_protocol(load_recipe("cub"), "reference", "cms")
    assert (found.loss.denominator, found.loss.detach_norm) == ("reference", True)
    assert (found.head.kind, found.bank) == ("bottleneck", "views")
    assert (found.training.views.jitter, found.training.views.hue) == (0, 0)
    assert (found.inference.rule, found.inference.estimate_shifts) == ("paper", 0)
    recipe = load_recipe("cub")
    assert (found.loss.temperature, found.training.lr) == (
        recipe.loss.temperature,
        recipe.training.lr,
    )


@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("method", ["cms", "gcd"])
def test_neither_the_paper_nor_the_released_code_cuts_gradients(method, protocol):
    recipe = load_recipe(method=method)
    assert recipe.training.max_gradient is not None, (
        "the default recipe cuts them, or this test proves nothing"
    )
    assert follow_protocol(recipe, protocol, method).training.max_gradient is None
    assert (
        follow_protocol(recipe, "shoal", method).training.max_gradient
        == recipe.training.max_gradient
    )


def test_another_method_keeps_its_own_losses_and_head():
    recipe = load_recipe(method="gcd")
    found = follow_protocol(recipe, "reference", "gcd")
    assert (found.loss, found.head) == (recipe.loss, recipe.head)
    assert found.training.views.jitter == 0


def test_an_unknown_protocol_is_refused():
    with pytest.raises(UnknownName, match="no protocol 'papers'; did you mean 'paper'"):
        get_protocol("papers")
