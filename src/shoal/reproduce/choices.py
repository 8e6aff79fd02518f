"""What was chosen for a cell where the paper, the released code and this package differ, in words for under a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.methods.catalog import get_method
from shoal.reproduce.experiment import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """Four choices that a number depends on, each in a few words."""

    losses: str
    head: str
    k_rule: str
    """Where K comes from."""
    snapshot: str
    """Which epoch's networks are kept."""


TITLES = {"losses": "Losses", "head": "Head", "k_rule": "K", "snapshot": "Snapshot"}
"""How each is headed under a table."""


def choices_of(cell: Cell) -> Choices:
    """Say what a cell chooses."""
    return Choices(losses=_losses(cell), head=_head(cell), k_rule=_k_rule(cell), snapshot=_snapshot(cell))


def grouped(choices: Mapping[str, Choices], name: str) -> str:
    """One choice of all rows, by name: 'Head: paper', or 'Head: none (Agglomerative); bottleneck (GCD | CMS)'."""
    rows: dict[str, list[str]] = {}
    for row, found in choices.items():
        rows.setdefault(getattr(found, name), []).append(row)
    if len(rows) == 1:
        return f"{TITLES[name]}: {next(iter(rows))}"
    return f"{TITLES[name]}: " + "; ".join(f"{text} ({' | '.join(names)})" for text, names in rows.items())


def _losses(cell: Cell) -> str:
    if not get_method(cell.method).trains:
        return "none, nothing is trained"
    loss, training = cell.settings.loss, cell.settings.training
    kind = "paper's" if loss.denominator == "paper" else "released code's"
    if cell.method != "cms":
        return f"InfoNCE and supervised contrastive, {kind} denominator of the latter"
    norm = "detached" if loss.detach_norm else "plain"
    seen = "z" if loss.supervised_input == "shifted" else "v"
    return f"{kind} denominators, norm of z {norm}, {seen} in the supervised loss, bank of {training.bank}"


def _head(cell: Cell) -> str:
    if not get_method(cell.method).trains:
        return "none"
    head = cell.settings.head
    text = "paper" if head.kind == "paper" else f"bottleneck of {head.bottleneck} (released code)"
    return text if cell.method == "cms" else f"{text}, discarded after training"


def _k_rule(cell: Cell) -> str:
    if cell.n_clusters == "given":
        return "given"
    if cell.sees_hidden_labels:
        return "highest accuracy on known classes by HIDDEN labels"
    inference: Any = cell.clustering_settings.inference
    is_validated = get_method(cell.method).trains and getattr(cell.settings, "estimate_on", "") == "validation"
    if is_validated:
        return f"rule '{cell.settings.inference.rule}' on labeled validation images"
    shifts = f" after {inference.estimate_shifts} shift(s)" if cell.clustering == "cms" else ""
    return f"rule '{inference.rule}' on all given labels{shifts}"


def _snapshot(cell: Cell) -> str:
    if not get_method(cell.method).trains:
        return "none"
    if cell.setup == "unsupervised" or cell.settings.training.snapshot == "last":
        return "last epoch"
    if cell.sees_hidden_labels:
        return "best epoch by HIDDEN labels"
    with_k = " at the given K" if cell.selection == "given" else " over all K"
    return f"best epoch by labeled validation images{with_k}"
