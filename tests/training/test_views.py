import colorsys

import pytest
import torch

from shoal.errors import UsageError
from shoal.training.views import ViewSettings, draw_views, jitter, make_views

PLAIN = ViewSettings(flip=0, jitter=0)


@pytest.fixture
def pixels():
    return torch.randint(
        0, 256, (5, 16, 16, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )


def draws(**chosen):
    """One view's draws, all in the middle but the chosen ones."""
    names = ["top", "left", "flip", "brightness", "contrast", "saturation", "hue"]
    return torch.tensor([[chosen.get(name, 0.5) for name in names]])


def shown(views):
    return (views * 0.25 + 0.5) * 255  # undo the tiny encoder's mean and std


@pytest.mark.parametrize(
    ("top", "left", "corner"), [(0.0, 0.0, (0, 0)), (0.99, 0.0, (2, 0)), (0.4, 0.99, (1, 2))]
)
def test_a_crop_is_cut_where_it_was_drawn(toy, pixels, top, left, corner):
    view = make_views(pixels, torch.tensor([3]), draws(top=top, left=left), toy.encoder(14), PLAIN)
    y, x = corner
    expected = pixels[3, y : y + 14, x : x + 14].permute(2, 0, 1)
    torch.testing.assert_close(shown(view[0]), expected.float(), rtol=0, atol=1e-3)


def test_a_flip_mirrors_left_and_right(toy, pixels):
    encoder = toy.encoder(14)
    settings = ViewSettings(flip=0.5, jitter=0)
    plain = make_views(pixels, torch.tensor([1]), draws(flip=0.6), encoder, settings)
    flipped = make_views(pixels, torch.tensor([1]), draws(flip=0.4), encoder, settings)
    assert torch.equal(flipped, plain.flip(3))
    assert not torch.equal(flipped, plain)


def test_an_image_of_one_pixel_gives_a_view(toy):
    one = torch.full((1, 1, 1, 3), 102, dtype=torch.uint8)
    view = make_views(one, torch.tensor([0]), draws(), toy.encoder(8), PLAIN)
    torch.testing.assert_close(shown(view), torch.full((1, 3, 8, 8), 102.0))


def test_views_of_a_batch_are_those_of_its_images_one_by_one(toy, pixels):
    encoder = toy.encoder(14)
    settings = ViewSettings(hue=0.1)
    look = draw_views(5, torch.Generator().manual_seed(1))
    rows = torch.tensor([4, 0, 0, 2, 1])
    together = make_views(pixels, rows, look, encoder, settings)
    for i in range(5):
        alone = make_views(pixels, rows[i : i + 1], look[i : i + 1], encoder, settings)
        torch.testing.assert_close(together[i], alone[0])


def colored(red, green, blue):
    return torch.tensor([red, green, blue]).view(1, 3, 1, 1).expand(1, 3, 2, 2)


def test_brightness_scales_every_channel():
    strong = draws(brightness=1.0)[:, 3:]  # 1 + jitter
    found = jitter(colored(0.5, 0.25, 0.1), strong, ViewSettings(jitter=0.2))
    torch.testing.assert_close(found, colored(0.6, 0.3, 0.12))


def test_contrast_moves_pixels_away_from_the_images_mean_brightness():
    image = torch.tensor([0.2, 0.6]).view(1, 1, 1, 2).expand(1, 3, 1, 2)  # gray, mean 0.4
    found = jitter(image, draws(contrast=1.0)[:, 3:], ViewSettings(jitter=0.5))
    torch.testing.assert_close(found, torch.tensor([0.1, 0.7]).view(1, 1, 1, 2).expand(1, 3, 1, 2))


def test_saturation_zero_leaves_the_brightness_alone():
    image = colored(0.8, 0.4, 0.2)
    found = jitter(image, draws(saturation=0.0)[:, 3:], ViewSettings(jitter=0.999))
    torch.testing.assert_close(
        found, colored(*[0.299 * 0.8 + 0.587 * 0.4 + 0.114 * 0.2] * 3), rtol=0, atol=1e-3
    )


def test_a_third_of_a_turn_of_hue_turns_reddish_into_greenish_or_bluish():
    found = jitter(colored(0.6, 0.4, 0.4), draws(hue=1.0)[:, 3:], ViewSettings(jitter=0, hue=1 / 3))
    before = colorsys.rgb_to_hsv(0.6, 0.4, 0.4)[0]
    after = colorsys.rgb_to_hsv(*found[0, :, 0, 0].tolist())[0]
    assert abs((after - before) % 1 - 1 / 3) < 0.06 or abs((after - before) % 1 - 2 / 3) < 0.06


@pytest.mark.parametrize("settings", [ViewSettings(jitter=0.4, hue=0.5), ViewSettings(jitter=0.9)])
def test_gray_stays_gray_and_colors_stay_in_range(settings):
    look = draw_views(20, torch.Generator().manual_seed(0))[:, 3:]
    gray = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(1)).expand(20, 3, 4, 4)
    found = jitter(gray, look, settings)
    torch.testing.assert_close(found[:, 0], found[:, 1], rtol=0, atol=1e-3)
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize("bad", [{"flip": 1.2}, {"jitter": 1.0}, {"jitter": -0.1}, {"hue": 0.6}])
def test_chances_and_strengths_out_of_range_are_refused(bad):
    with pytest.raises(UsageError, match=f"views.{next(iter(bad))}: found"):
        ViewSettings(**bad)
