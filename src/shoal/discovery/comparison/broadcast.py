"""Several processes at one comparison: what the main one says, and what the others do when they hear it."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.data.collection import Collection
from shoal.discovery.comparison.comparison_settings import ComparisonSettings
from shoal.discovery.comparison.judge_methods import run_folder
from shoal.discovery.comparison.label_draw import withhold_labels
from shoal.discovery.comparison.trunk import SharedTrunk, Training
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import decode, share_embedding
from shoal.discovery.reporter import SILENT
from shoal.distributed import flag_from_main, object_from_main
from shoal.errors import Diverged
from shoal.methods.method import LearnOptions
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.runs import Run


@dataclass(frozen=True)
class _Told:
    """A training without its images, which every process has itself."""

    draw: int
    settings: DiscoverySettings
    n_clusters: int | None
    n_views: int
    reads_images: bool


def broadcast_trainings(trainings: Sequence[Training], device: torch.device) -> None:
    """Say which trainings there will be, if any."""
    if flag_from_main(bool(trainings), device):
        object_from_main([_told(one) for one in trainings], device)


def broadcast_next_training(is_wanted: bool, device: torch.device) -> None:
    """Say that the next training begins, or that there is none."""
    flag_from_main(is_wanted, device)


def follow_comparison(
    collection: Collection,
    run: Run,
    settings: ComparisonSettings,
    device: torch.device,
    resume: bool,
) -> None:
    """Take a share of the embedding and of the trainings when the main process has come to them."""
    share_embedding(collection, settings.first, device)
    if not flag_from_main(False, device):
        return
    images = decode(collection, settings.first, SILENT)
    draws = [
        withhold_labels(images.collection, settings.first, draw) for draw in range(settings.draws)
    ]
    trainings = [
        Training(
            draw=told.draw,
            settings=told.settings,
            task=Task(
                pixels=images.pixels,
                labels=draws[told.draw].given.labels,
                n_clusters=told.n_clusters,
            ),
            n_views=told.n_views,
            reads_images=told.reads_images,
        )
        for told in object_from_main(None, device)
    ]
    trunk = SharedTrunk(images.pixels, trainings, device=device, scratch=run.path)
    try:
        for one in trainings:
            if not flag_from_main(False, device):
                return
            folder = training_folder(run, one.settings, one.draw)
            how: LearnOptions = {"folder": folder, "resume": resume, "keeps_trunk": True}
            with contextlib.suppress(Diverged):  # which the main process hears of too
                get_method(one.settings.method).represent(
                    trunk.share(one), one.settings.of_method, device=device, **how
                )
        flag_from_main(False, device)
    finally:
        trunk.remove()


def training_folder(run: Run, settings: DiscoverySettings, draw: int) -> Path:
    """The folder in which a training leaves its checkpoints."""
    return run.path / f"trial-{run_folder(run.path, settings.method, draw).name}"


def _told(one: Training) -> _Told:
    return _Told(one.draw, one.settings, one.task.n_clusters, one.n_views, one.reads_images)
