import pytest
import torch

from shoal.errors import UsageError
from shoal.settings import from_dict
from shoal.training.sampling import jitter, make_views, sample_view_parameters
from shoal.training.train_settings import ViewSettings

PLAIN = ViewSettings(flip=0, jitter=0)


@pytest.fixture
def pixels():
    return torch.randint(
        0, 256, (5, 16, 16, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )


def parameters(**chosen):
    """Return the parameters of a view: 0.5 except for the given ones."""
    names = ["top", "left", "flip", "brightness", "contrast", "saturation", "unused"]
    return torch.tensor([[chosen.get(name, 0.5) for name in names]])


def shown(views):
    return (views * 0.25 + 0.5) * 255  # undo the tiny encoder's mean and std


@pytest.mark.parametrize(
    ("top", "left", "corner"), [(0.0, 0.0, (0, 0)), (0.99, 0.0, (2, 0)), (0.4, 0.99, (1, 2))]
)
def test_parameters_determine_the_crop(toy, pixels, top, left, corner):
    view = make_views(
        pixels, torch.tensor([3]), parameters(top=top, left=left), toy.encoder(14), PLAIN
    )
    y, x = corner
    expected = pixels[3, y : y + 14, x : x + 14].permute(2, 0, 1)
    torch.testing.assert_close(shown(view[0]), expected.float(), rtol=0, atol=1e-3)


def test_a_flip_mirrors_left_and_right(toy, pixels):
    encoder = toy.encoder(14)
    settings = ViewSettings(flip=0.5, jitter=0)
    plain = make_views(pixels, torch.tensor([1]), parameters(flip=0.6), encoder, settings)
    flipped = make_views(pixels, torch.tensor([1]), parameters(flip=0.4), encoder, settings)
    assert torch.equal(flipped, plain.flip(3))
    assert not torch.equal(flipped, plain)


def test_an_image_of_one_pixel_gives_a_view(toy):
    one = torch.full((1, 1, 1, 3), 102, dtype=torch.uint8)
    view = make_views(one, torch.tensor([0]), parameters(), toy.encoder(8), PLAIN)
    torch.testing.assert_close(shown(view), torch.full((1, 3, 8, 8), 102.0))


def test_views_of_a_batch_equal_those_of_single_images(toy, pixels):
    encoder = toy.encoder(14)
    settings = ViewSettings()
    sampled = sample_view_parameters(5, torch.Generator().manual_seed(1))
    rows = torch.tensor([4, 0, 0, 2, 1])
    together = make_views(pixels, rows, sampled, encoder, settings)
    for i in range(5):
        alone = make_views(pixels, rows[i : i + 1], sampled[i : i + 1], encoder, settings)
        torch.testing.assert_close(together[i], alone[0])


def colored(red, green, blue):
    return torch.tensor([red, green, blue]).view(1, 3, 1, 1).expand(1, 3, 2, 2)


def test_brightness_scales_every_channel():
    strong = parameters(brightness=1.0)[:, 3:6]  # 1 + jitter
    found = jitter(colored(0.5, 0.25, 0.1), strong, 0.2)
    torch.testing.assert_close(found, colored(0.6, 0.3, 0.12))


def test_contrast_moves_pixels_away_from_the_images_mean_brightness():
    image = torch.tensor([0.2, 0.6]).view(1, 1, 1, 2).expand(1, 3, 1, 2)  # gray, mean 0.4
    found = jitter(image, parameters(contrast=1.0)[:, 3:6], 0.5)
    torch.testing.assert_close(found, torch.tensor([0.1, 0.7]).view(1, 1, 1, 2).expand(1, 3, 1, 2))


def test_zero_saturation_keeps_the_brightness():
    image = colored(0.8, 0.4, 0.2)
    found = jitter(image, parameters(saturation=0.0)[:, 3:6], 0.999)
    torch.testing.assert_close(
        found, colored(*[0.299 * 0.8 + 0.587 * 0.4 + 0.114 * 0.2] * 3), rtol=0, atol=1e-3
    )


def test_gray_stays_gray_and_colors_stay_in_range():
    sampled = sample_view_parameters(20, torch.Generator().manual_seed(0))[:, 3:6]
    gray = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(1)).expand(20, 3, 4, 4)
    found = jitter(gray, sampled, 0.9)
    torch.testing.assert_close(found[:, 0], found[:, 1], rtol=0, atol=1e-3)
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize("bad", [{"flip": 1.2}, {"jitter": 1.0}, {"jitter": -0.1}])
def test_invalid_view_settings_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        from_dict(ViewSettings, bad)
