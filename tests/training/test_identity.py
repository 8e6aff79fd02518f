import torch

from shoal.training.identity import identify_encoder


def test_other_weights_under_the_same_name_are_another_encoder(toy):
    """The trunk's; the tail's own come from the checkpoint."""
    first, second, trained = toy.encoder(), toy.encoder(), toy.encoder()
    assert identify_encoder(first) == identify_encoder(second)
    with torch.no_grad():
        second.trunk[0].weight.add_(1e-3)
        trained.tail[0][1].weight.add_(1)
    assert identify_encoder(first)["weights"] != identify_encoder(second)["weights"]
    assert identify_encoder(first) == identify_encoder(trained)
