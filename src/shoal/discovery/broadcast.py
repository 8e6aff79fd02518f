"""Several processes at one discovery: what the main one says, and what the others do when they hear it.

The main process reads, chooses and writes; embedding and training are shared, and so is clustering, for which it calls
the others whenever they wait (`distributed.tell_others`). Each function of the first part is a message, which
`follow_main` waits for in the same order.
"""

from typing import Any

import torch

from shoal.data.collection import Collection
from shoal.discovery.reading import broadcast_embedding, decode, share_embedding
from shoal.discovery.reporter import SILENT
from shoal.discovery.settings import DiscoverySettings
from shoal.discovery.trained.trials import (
    first_trial,
    last_settings,
    training_task,
    trial_folder,
    trial_settings,
    trial_tasks,
)
from shoal.discovery.trained.withheld import set_aside
from shoal.distributed import flag_from_main, number_from_main
from shoal.methods.registry import get_method
from shoal.runs import Run


def broadcast_training(n_clusters: int | None, n_epochs: int, device: torch.device) -> None:
    """Say that training begins: the number of clusters that it is told, and its epochs."""
    flag_from_main(True, device)
    number_from_main(n_clusters, device)
    number_from_main(n_epochs, device)


def broadcast_no_training(device: torch.device) -> None:
    """Say that nothing is trained."""
    flag_from_main(False, device)


def broadcast_last_training(is_wanted: bool, device: torch.device, *, goes_on: bool = False) -> None:
    """Say whether the trial is followed by a training with all labels, and whether that goes on from the trial."""
    flag_from_main(is_wanted, device)
    flag_from_main(goes_on, device)


def broadcast_finished(settings: DiscoverySettings, device: torch.device) -> None:
    """Say that the run is finished: nothing is embedded and, where there would be training, nothing trained."""
    broadcast_embedding(False, device)
    if settings.is_trained:
        broadcast_no_training(device)


def follow_main(
    collection: Collection, run: Run, settings: DiscoverySettings, device: torch.device, resume: bool
) -> None:
    """Take a share of the embedding and of the training when the main process has come to them."""
    share_embedding(collection, settings, device)
    if settings.is_trained and flag_from_main(False, device):
        share_training(collection, run, settings, device, resume)


def share_training(
    collection: Collection, run: Run, settings: DiscoverySettings, device: torch.device, resume: bool
) -> None:
    """Train what the main process trains, when it has said that it begins."""
    images = decode(collection, settings, SILENT)
    withheld, settings = set_aside(images.collection, settings, SILENT)
    method = get_method(settings.method)
    how: dict[str, Any] = {"device": device, "resume": resume}
    n_clusters, n_epochs = number_from_main(None, device), number_from_main(None, device)
    settings = settings.with_epochs(n_epochs) if n_epochs is not None else settings
    if not withheld.has_trial:
        method.represent(training_task(images, withheld, n_clusters), settings.of_method, folder=run.path, **how)
        return
    settings = first_trial(settings, device)
    trial, final = trial_tasks(images, withheld, n_clusters)
    folder = trial_folder(run, settings)
    tried = method.represent(trial, trial_settings(settings), folder=folder, keeps_trunk=True, **how)
    is_wanted, goes_on = flag_from_main(False, device), flag_from_main(False, device)
    if is_wanted:
        last = last_settings(settings) if goes_on else settings
        how["start"] = tried.model if goes_on else None
        method.represent(tried.with_trunk(final), last.of_method, folder=run.path, **how)
    tried.free_trunk()
