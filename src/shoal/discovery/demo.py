"""The whole path on the embedded digits, and how right it was: `shoal demo`."""

from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.data.demo import digits
from shoal.discovery.face import DiscoveredRun
from shoal.discovery.images import discover_images
from shoal.discovery.narrator import Narrator
from shoal.discovery.scoring import Score, score_run
from shoal.discovery.settings import DiscoverySettings
from shoal.methods.catalog import load_recipe

RECIPE = "digits"


@dataclass(frozen=True, eq=False, kw_only=True)
class Demo:
    """What the demo found, and how it compares with the truth that was kept aside."""

    run: DiscoveredRun
    score: Score


def demo_settings(seed: int = 0, *, train: bool = False) -> DiscoverySettings:
    """The recipe of the digits; their pixels are kept no larger than the encoder looks at them.

    Without training unless asked: what can be trained in a minute or two does worse than the encoder as it comes.
    """
    cms = load_recipe(RECIPE)
    return DiscoverySettings(seed=seed, train=train, pixel_size=cms.input_size, cms=cms)


def run_demo(
    out: Path | str,
    settings: DiscoverySettings | None = None,
    *,
    device: str | torch.device | None = None,
    force: bool = False,
    command: str = "",
    narrator: Narrator | None = None,
) -> Demo:
    """Discover the digits 5 to 9 with half of 0 to 4 labeled, then compare with the truth, and write the report.

    The truth is handed to the scoring alone, after the run is finished.
    """
    settings, narrator = settings or demo_settings(), narrator or Narrator()
    collection, truth = digits(settings.seed)
    narrator.say(collection.describe())
    made = discover_images(collection, out, settings, device=device, force=force, command=command, narrator=narrator)
    run = DiscoveredRun(made.path)  # its report comes last, with the score in it
    score = score_run(run, dict(zip(truth.names, (truth.classes[label] for label in truth.labels), strict=True)))
    with narrator.bar("writing the report"):
        run.report()
    return Demo(run=run, score=score)
