"""The whole path on the embedded digits, and how right it was: `shoal demo`."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from shoal.arrays import UNLABELED
from shoal.data.collection import Collection
from shoal.data.digits import digits
from shoal.discovery.assign import Assigner
from shoal.discovery.discovered_run import DiscoveredRun
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.pipeline import discover_images
from shoal.discovery.reporter import Reporter
from shoal.discovery.run_folder import collection_checksum
from shoal.discovery.scoring import LaterScore, Score, score_later, score_run
from shoal.errors import UsageError
from shoal.methods.registry import load_recipe
from shoal.runs import Run

RECIPE = "digits"

N_DIGITS = 1000
"""Digits to discover; with all 1,700 the demo would take twice as long."""

N_LATER = 97
"""Digits that come after the run is finished, to be assigned."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Demo:
    """What the demo found, and how it compares with the truth that was kept aside."""

    run: DiscoveredRun
    score: Score
    later: LaterScore


def demo_settings(seed: int = 0, *, train: bool = True) -> DiscoverySettings:
    """The recipe of the digits; their pixels are kept no larger than the encoder looks at them."""
    cms = load_recipe(RECIPE)
    return DiscoverySettings(seed=seed, train=train, pixel_size=cms.input_size, method_settings=cms)


def run_demo(
    out: Path | str,
    settings: DiscoverySettings | None = None,
    *,
    device: str | torch.device | None = None,
    command: str = "",
    reporter: Reporter | None = None,
) -> Demo:
    """Discover the digits 5 to 9 with half of 0 to 4 labeled, assign the last ones, compare with the truth, report.

    An earlier demo in the folder is overwritten, any other run is refused. The truth is handed to the scoring alone,
    after the run is finished.
    """
    settings = settings or demo_settings()
    reporter = reporter or Reporter()
    _refuse_other_run(Run(Path(out)))
    collection, truth = digits(settings.seed)
    names = dict(zip(truth.names, (truth.classes[label] for label in truth.labels), strict=True))
    collection, later = _split(collection)
    made = discover_images(
        collection, out, settings, device=device, force=True, command=command, reporter=reporter
    )
    run = DiscoveredRun(made.path)  # its report comes last, with the score in it
    with reporter.progress(f"assigning {len(later)} digits that came later"):
        rows, _unreadable = Assigner(run, device=device).assign_images(later)
    score = score_run(run, names)
    of_later = score_later(run, rows, names)
    with reporter.progress("writing the report"):
        run.report()
    return Demo(run=run, score=score, later=of_later)


def _refuse_other_run(run: Run) -> None:
    """Refuse a folder whose run was not made of the digits; every demo is, whatever its seed."""
    if not run.has("provenance.json"):
        return
    about = run.provenance
    seed = about.get("seed")
    images = about.get("fingerprint")
    is_demo = (
        images is not None
        and seed is not None
        and images == collection_checksum(_split(digits(seed)[0])[0])
    )
    if not is_demo:
        raise UsageError(
            f"{run.path}: holds a run that is not a demo; choose another --out, or delete that folder"
        )


def _split(collection: Collection) -> tuple[Collection, Collection]:
    """The first digits, and the ones after them without any label."""
    n_first = min(N_DIGITS, len(collection) - N_LATER)
    first, later = (
        collection.subset(range_)
        for range_ in (np.arange(n_first), np.arange(n_first, n_first + N_LATER))
    )
    return first, replace(later, labels=np.full(N_LATER, UNLABELED))
