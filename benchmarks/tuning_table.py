"""The table of `tuning.py`: a row for each configuration, mean and standard error over seeds, and what is chosen."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.encoders.catalog import DEFAULT_ENCODER, ENCODERS

Trial = dict[str, Any]
"""A method, and the settings in which it differs from the default recipe, by dotted name."""

DEFAULT_DEPTH = ENCODERS[DEFAULT_ENCODER].n_tail_blocks
"""Blocks of the tail where a trial does not say."""


@dataclass(frozen=True)
class Judged:
    """A configuration, and what its seeds were judged at."""

    trial: Trial
    scores: dict[str, np.ndarray]  # name of the clustering -> (S, 3) All / Known / Novel of S seeds
    seconds: float

    @property
    def mean(self) -> float:
        """All of the method's own clustering, over seeds."""
        return float(self.scores["own"][:, 0].mean())

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN for one seed."""
        return standard_error(self.scores["own"][:, 0])

    @property
    def depth(self) -> int:
        """Blocks of the tail."""
        return int(self.trial.get("n_tail_blocks") or DEFAULT_DEPTH)


def choose(several: list[Judged]) -> Judged:
    """The best mean; of those within one standard error of it the shallowest tail, and of these the best mean."""
    best = max(several, key=lambda one: one.mean)
    reach = best.mean - (0.0 if math.isnan(best.error) else best.error)
    near = [one for one in several if one.mean >= reach and one.depth < best.depth]
    shallowest = min((one.depth for one in near), default=0)
    return max(
        (one for one in near if one.depth == shallowest), key=lambda one: one.mean, default=best
    )


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else math.nan


def judged(out: Path) -> list[Judged]:
    """All finished trials; those that differ in their seed only are one configuration."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(out.glob("trial_*.json")):
        result = json.loads(file.read_text())
        found.setdefault(configuration_of(result["trial"]), []).append(result)
    names = {"tree": "tree", "own": "shifted", "algorithm1": "algorithm1"}
    return [
        Judged(
            json.loads(configuration),
            {
                ours: np.array([one[key] for one in several])
                for ours, key in names.items()
                if key in several[0]
            },
            float(np.mean([one["seconds"] for one in several])),
        )
        for configuration, several in found.items()
    ]


def table(out: Path) -> str:
    """A row for each configuration, the best first, and what is chosen for each method."""
    rows = sorted(judged(out), key=lambda one: -one.mean)
    lines = [
        "All / Known / Novel in percent, mean ± standard error over seeds, by the labels that were taken away.",
        "",
        "| method | configuration | seeds | Ward's tree | the method's own clustering | Algorithm 1 instead | s |",
        "|---" * 7 + "|",
        *(_line(one) for one in rows),
        "",
    ]
    for method in sorted({one.trial.get("method", "cms") for one in rows}):
        several = [one for one in rows if one.trial.get("method", "cms") == method]
        best = several[0]
        chosen = choose(several)
        why = (
            "the best mean"
            if chosen is best
            else f"the shallower tail within {best.error:.1f} of {best.mean:.1f}"
        )
        lines.append(
            f"Chosen for {method}: {_shown(chosen.trial)} ({chosen.mean:.1f}; {why}; of {len(several)})."
        )
    return "\n".join(lines)


def _line(one: Judged) -> str:
    cells = [_spread(one.scores.get(name)) for name in ("tree", "own", "algorithm1")]
    method = one.trial.get("method", "cms")
    n_seeds = len(one.scores["own"])
    return (
        f"| {method} | {_shown(one.trial)} | {n_seeds} | {' | '.join(cells)} | {one.seconds:.0f} |"
    )


def _spread(scores: np.ndarray | None) -> str:
    if scores is None:
        return "–"
    return " / ".join(
        f"{column.mean():.1f}" + _plus_minus(standard_error(column)) for column in scores.T
    )


def _plus_minus(error: float) -> str:
    return "" if math.isnan(error) else f" ± {error:.1f}"


def _shown(trial: Trial) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in trial.items() if name != "method")
        or "the recipe"
    )


def configuration_of(trial: Trial) -> str:
    """What two trials that differ in their seed have in common."""
    return json.dumps(
        {name: value for name, value in trial.items() if name != "training.seed"}, sort_keys=True
    )
