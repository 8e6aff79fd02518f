"""Shared fixtures; tests whose requirements are missing are skipped with the reason."""

import csv
import gc
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from markupsafe import Markup
from PIL import Image

from chromium import Browser, launched
from no_figure import NoFigure

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
DATA = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))

# One engine unless another is asked for, so that results are the same on every machine;
# test_engines.py tests the others.
os.environ.setdefault("SHOAL_ENGINE", "torch")

# Two processes with two threads each share two processors: waiting threads yield instead of
# spinning.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# Nothing of what is imported and collected is ever freed.
gc.disable()

# No deadline for hypothesis examples, because the machine may be busy.
settings.register_profile("shoal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shoal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    """Use the same number of threads on every machine, so that timings and rounding agree, unless
    OMP_NUM_THREADS asks for others.

    The controller of pytest-xdist, which runs no tests, does not import torch, which takes two
    seconds.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    absent = {
        "slow": None if config.getoption("--slow") else "slow: run with --slow",
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
        "browser": None if CHROMIUM else "no Chromium; install it, or set CHROMIUM to its path",
        "data": None if DATA.is_dir() else f"no real images at {DATA}; set SHOAL_DATA",
    }
    for item in items:
        for marker, reason in absent.items():
            # item.keywords also contains the names of folders, such as tests/data.
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start garbage collection, which need not look at imported modules and collected tests: they
    stay alive until the end.

    Let all loggers propagate: pytest attaches its handlers to every logger that does not, six times
    per test, and torch has dozens of them.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Disable fsync: no test simulates a power cut, so writes need not reach the disk."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture
def data_dir() -> Path:
    return DATA


COLORS = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [190, 190, 40], [40, 190, 190]])
NAMES = ("red", "green", "blue", "yellow", "cyan")


@dataclass(frozen=True)
class Photos:
    """Image files of noisy flat colors with random names; three of five colors are known."""

    folder: Path
    # Half of the red, green and blue ones
    labels: Path
    truth: dict[str, str]
    # Settings with a tiny encoder and two epochs
    config: Path


TINY = """
train: true
pixel_size: 16
cms:
  encoder: {encoder}
  head: {{kind: paper, width: 24, dim: 12, bottleneck: 8}}
  training: {{epochs: 2, batch_size: 16, lr: 0.01}}
  inference: {{shift: {{n_neighbors: 4}}}}
"""


def write_table(file: Path, rows: dict[str, str]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("path", "label"), *rows.items()])
    return file


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a ViT with random weights, as transformers saves it."""
    import torch

    from shoal.encoders.hub import import_transformers

    transformers = import_transformers()
    folder = tmp_path_factory.mktemp("encoder") / "tiny-vit"
    torch.manual_seed(0)
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    transformers.ViTModel(
        transformers.ViTConfig(image_size=16, patch_size=8, **small)
    ).save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": half, "image_std": half, "size": 16})
    )
    return folder


@cache
def pictures(n_images: int) -> dict[str, tuple[str, bytes]]:
    """Return name -> color and PNG bytes of each photo, generated once."""
    rng = np.random.default_rng(0)
    colors = {f"photo-{rng.integers(1 << 30):09d}.png": NAMES[i % 5] for i in range(n_images)}
    found = {}
    for name, color in colors.items():
        pixels = COLORS[NAMES.index(color)] + rng.integers(-45, 46, size=(20, 24, 3))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
        found[name] = color, file.getvalue()
    return found


def write_photos(place: Path, encoder: Path, n_images: int = 60) -> Photos:
    """Write photos, a table of labels and settings to an existing folder."""
    folder = place / "photos"
    folder.mkdir()
    truth = {}
    for name, (color, data) in pictures(n_images).items():
        truth[name] = color
        (folder / name).write_bytes(data)
    known = [name for name, color in truth.items() if color in NAMES[:3]]
    labels = write_table(place / "labels.csv", {name: truth[name] for name in known[::2]})
    config = place / "tiny.yaml"
    config.write_text(TINY.format(encoder=encoder))
    return Photos(folder, labels, truth, config)


@pytest.fixture(scope="session")
def tiny_model(tiny_encoder: Path) -> object:
    """The tiny encoder, loaded from its folder."""
    from shoal.encoders.hub import load_model

    return load_model(str(tiny_encoder), offline="a folder is all there is")


@pytest.fixture
def without_slow_parts(
    tiny_encoder: Path, tiny_model: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace steps that take longer than a run on photos, each about half a second of CPU time.

    Threads decode images instead of processes, the figures of reports have their text but no
    drawing, and the tiny encoder is copied instead of loaded. `unchanged_photos` and the tests of
    pixels, reports and encoders use the real steps.
    """
    from shoal.encoders import hub

    load = hub.load_model

    def copied(source: str, *, offline: str | None) -> object:
        if source == str(tiny_encoder):
            return deepcopy(tiny_model)
        return load(source, offline=offline)

    monkeypatch.setattr(hub, "load_model", copied)
    monkeypatch.setattr("shoal.data.pixels.workers.worker_pool", ThreadPoolExecutor)
    monkeypatch.setattr("shoal.report.figures.new_figure", NoFigure)
    monkeypatch.setattr("matplotlib.rc_context", nullcontext)
    drawn = Markup('<svg class="plot" role="img" aria-label="{}"></svg>')
    monkeypatch.setattr(
        "shoal.report.page.inline_svg", lambda figure, name, words: drawn.format(words)
    )


@pytest.fixture
def make_photos(
    tmp_path: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, without_slow_parts: None
) -> Callable[..., Photos]:
    """Return a function that writes photos to tmp_path, which also holds the pixel cache."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return lambda n_images=60: write_photos(tmp_path, tiny_encoder, n_images)


@pytest.fixture
def photos(make_photos: Callable[..., Photos]) -> Photos:
    return make_photos()


@pytest.fixture
def unchanged_photos(tmp_path: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> Photos:
    """Photos for a run without test doubles: worker processes decode them, and the report has
    figures."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return write_photos(tmp_path, tiny_encoder)


@pytest.fixture(scope="session")
def discovered_photos(
    tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Photos, Callable[[bool], Path]]:
    """Read-only photos, decoded once, and a function that returns their run with five clusters,
    trained or frozen; each run is computed once."""
    import torch

    from photo_runs import run_on
    from shoal.discovery.discovery_settings import choose_settings

    place = tmp_path_factory.mktemp("discovered")
    found = write_photos(place, tiny_encoder)

    @cache
    def run(train: bool) -> Path:
        settings = choose_settings(config=found.config, n_clusters=5, train=train)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SHOAL_CACHE", str(place / "cache"))
            patched.setattr("shoal.data.pixels.workers.worker_pool", ThreadPoolExecutor)
            n_threads = torch.get_num_threads()
            torch.set_num_threads(1)  # as in the tests that compare with this run
            made = run_on(found, place / f"run-{train}", settings).path
            torch.set_num_threads(n_threads)
            return made

    return found, run


@pytest.fixture
def same_photos(
    discovered_photos: tuple[Photos, Callable[[bool], Path]],
    monkeypatch: pytest.MonkeyPatch,
    without_slow_parts: None,
) -> Photos:
    """The photos of `discover_same`, for tests that only read them."""
    found, _ = discovered_photos
    monkeypatch.setenv("SHOAL_CACHE", str(found.folder.parent / "cache"))
    return found


@pytest.fixture
def discover_same(
    discovered_photos: tuple[Photos, Callable[[bool], Path]], same_photos: Photos, tmp_path: Path
) -> Callable[..., Path]:
    """Return a function that copies the run on `same_photos` to tmp_path."""
    return lambda train=False: Path(shutil.copytree(discovered_photos[1](train), tmp_path / "run"))


@pytest.fixture
def one_thread() -> object:
    """Run torch with one thread: in small networks on a busy machine, two threads wait for each
    other at every layer."""
    from small_models import limit_threads

    yield from limit_threads()


@pytest.fixture(scope="session")
def chromium() -> str:
    assert CHROMIUM
    return CHROMIUM


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as found:
        yield found
