"""What was chosen for a cell where the paper, the released code and this package differ, in words for under a table."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.clustering.n_clusters import NEEDS
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


def choices_of(cell: Cell, decided: Collection[str | None] = ()) -> Choices:
    """Say what a cell, and those that differ from it in their seed, choose.

    `decided` are the rules that K came from in the finished ones of them, None for a record that does not say.
    """
    return Choices(losses=_losses(cell), head=_head(cell), k_rule=_k_rule(cell, decided), snapshot=_snapshot(cell))


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


def _k_rule(cell: Cell, decided: Collection[str | None]) -> str:
    if cell.n_clusters == "given":
        return "given"
    if cell.sees_hidden_labels:
        return "highest accuracy on known classes by HIDDEN labels"
    inference: Any = cell.clustering_settings.inference
    is_validated = get_method(cell.method).trains and getattr(cell.settings, "estimate_on", "") == "validation"
    if is_validated:
        return f"{_rule(cell.settings.inference.rule, decided)} on labeled validation images"
    shifts = f" after {inference.estimate_shifts} shift(s)" if cell.clustering == "cms" else ""
    return f"{_rule(inference.rule, decided)} on all given labels{shifts}"


def _rule(asked: str, decided: Collection[str | None]) -> str:
    """The rule asked for and, where labels were too few for it in some cell, those that decided in its place."""
    named = sorted({rule for rule in decided if rule is not None})
    words = [f"decided by {' and '.join(map(repr, named))}"] if named not in ([], [asked]) else []
    # A rule that needs no number of labels always decides itself.
    words += ["which one decided was not kept"] if None in decided and asked in NEEDS else []
    return f"rule '{asked}'" + (f" ({'; '.join(words)})" if words else "")


def _snapshot(cell: Cell) -> str:
    if not get_method(cell.method).trains:
        return "none"
    if cell.setup == "unsupervised" or cell.settings.training.snapshot == "last":
        return "last epoch"
    if cell.sees_hidden_labels:
        return "best epoch by HIDDEN labels"
    with_k = " at the given K" if cell.selection == "given" else " over all K"
    return f"best epoch by labeled validation images{with_k}"
