import pytest
import torch
from torch import nn

from shoal.encoders.vision import Encoder, InputFormat, Parts
from shoal.errors import UsageError

HALF = (0.5, 0.5, 0.5)


def make_encoder(**changes):
    parts = Parts(
        stem=nn.Identity(), blocks=[], finish=nn.Identity(), is_finish_trained=False, feature_dim=3
    )
    return Encoder("e", parts, InputFormat(size=8, std=(1, 1, 1), **{"mean": HALF, **changes}), 0)


def test_channels_are_turned_round_where_a_model_wants_blue_first():
    images = torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1)
    assert make_encoder(mean=(0, 0, 0)).normalize(images).flatten().tolist() == pytest.approx(
        [0.1, 0.2, 0.3]
    )
    turned = make_encoder(mean=(0.3, 0, 0), is_bgr=True).normalize(images)
    assert turned.flatten().tolist() == pytest.approx([0.0, 0.2, 0.1])


@pytest.mark.parametrize(
    ("size", "words"), [(0, "at least 8 pixels"), (7, "at least 8 "), (4097, "at most 4,096 ")]
)
def test_an_input_too_small_or_too_large_is_refused(size, words):
    with pytest.raises(UsageError):
        InputFormat(size=size, mean=(0, 0, 0), std=(1, 1, 1))
