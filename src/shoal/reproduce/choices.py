"""What was chosen for a cell where the paper, the released code and this package differ, in words for under a table."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.methods.registry import get_method
from shoal.reproduce.experiment import ONE_STEP
from shoal.reproduce.method_words import words_of
from shoal.reproduce.paper import CLIP
from shoal.reproduce.plan import Cell
from shoal.words import count, plural


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """Choices that a number depends on, in a few words each, and two numbers."""

    losses: str
    head: str
    k_rule: str
    """Where K comes from."""
    snapshot: str
    """Which epoch's networks are kept."""
    kmeans: str
    """How often semi-supervised k-means starts; empty where there is none."""
    epochs: int | None
    """Epochs of training; None where nothing is trained."""
    input_size: int | None
    """Side of the images; None: what the encoder, which is not in the catalog, was made for."""


TITLES = {
    "losses": "Losses",
    "head": "Head",
    "k_rule": "K",
    "snapshot": "Snapshot",
    "kmeans": "Semi-supervised k-means",
}
"""How those in words are headed under a table."""


def choices_of(cell: Cell, decided: Collection[str | None] = ()) -> Choices:
    """Say what a cell, and those that differ from it in their seed, choose.

    `decided` are the rules that K came from in the finished ones of them, None for a record that does not say.
    """
    return Choices(
        losses=words_of(cell.method).losses(cell.settings),
        head=_head(cell),
        k_rule=_k_rule(cell, decided),
        snapshot=_snapshot(cell),
        kmeans=""
        if cell.clustering == ONE_STEP
        else words_of(cell.clustering).starts(cell.clustering_settings),
        epochs=cell.settings.training.epochs if get_method(cell.method).trains else None,
        input_size=cell.input_size,
    )


def grouped(choices: Mapping[str, Choices], name: str) -> str:
    """One choice of all rows, by name: 'Head: paper', or 'Head: none (Agglomerative); bottleneck (GCD | CMS)'.

    Rows without words for it are left out; where that is all of them, it is empty.
    """
    rows: dict[str, list[str]] = {}
    for row, choice in choices.items():
        rows.setdefault(getattr(choice, name), []).append(row)
    rows.pop("", None)
    if not rows:
        return ""
    if len(rows) == 1:
        return f"{TITLES[name]}: {next(iter(rows))}"
    return f"{TITLES[name]}: " + "; ".join(
        f"{text} ({' | '.join(names)})" for text, names in rows.items()
    )


def describe_making(
    encoder: str,
    changes: Mapping[str, Any],
    choices: Mapping[tuple[str, str], Choices],
    titles: Mapping[str, str],
    seeds: Collection[int],
) -> str:
    """'encoder dino-vitb16, images of 224 px, 25 epochs, training.batch_size 64, seeds 0, 1'.

    `choices` are by row and dataset, `titles` names the datasets.
    """
    others = "".join(
        f", {name} {value}" for name, value in changes.items() if name != "training.epochs"
    )
    named = (
        f"{plural(len(seeds), 'seed')} {', '.join(map(str, seeds))}" if seeds else "nothing drawn"
    )
    return f"encoder {encoder}, {images_and_epochs(choices, titles)}{others}, {named}"


def images_and_epochs(choices: Mapping[tuple[str, str], Choices], titles: Mapping[str, str]) -> str:
    """'images of 224 px, 25 epochs'; where datasets differ, 'images of 224 px, 25 epochs on CUB, 8 epochs on …'.

    `choices` are by row and dataset, `titles` names the datasets.
    """
    sizes: dict[str, list[str]] = {}
    lengths: dict[str, list[str]] = {}
    for dataset, title in titles.items():
        own = [choice for (_, name), choice in choices.items() if name == dataset]
        if own:
            found_sizes = {choice.input_size for choice in own}
            sizes.setdefault(" or ".join(sorted(map(_pixels, found_sizes))), []).append(title)
            numbers = sorted({choice.epochs for choice in own if choice.epochs is not None})
            epochs = "nothing trained" if not numbers else count_epochs(*numbers)
            lengths.setdefault(epochs, []).append(title)
    return ", ".join(_on(choice) for choice in (sizes, lengths))


def count_epochs(*numbers: int) -> str:
    """'1 epoch', '25 epochs', '8 or 25 epochs'."""
    return f"{' or '.join(map(str, numbers))} {plural(max(numbers), 'epoch')}"


def _pixels(size: int | None) -> str:
    return "images of the encoder's own size" if size is None else f"images of {size} px"


def _on(groups: Mapping[str, list[str]]) -> str:
    """Texts with the datasets they hold for; without, where one holds for all."""
    return ", ".join(
        text if len(groups) == 1 else f"{text} on {' and '.join(on)}" for text, on in groups.items()
    )


def _head(cell: Cell) -> str:
    text = words_of(cell.method).head(cell.settings)
    if get_method(cell.method).trains and cell.settings.encoder == CLIP:
        text += (
            ", on the 768 numbers of CLIP's class token (the paper's: the 512 after its projection)"
        )
    return text


def _k_rule(cell: Cell, decided: Collection[str | None]) -> str:
    if cell.n_clusters == "given":
        return "given"
    method = get_method(cell.method)
    inference = cell.clustering_settings.inference
    words = words_of(cell.method)
    if own := words.number(cell.settings):
        return own
    if cell.sees_hidden_labels:
        return "highest accuracy on known classes by HIDDEN labels"
    if method.trains and cell.settings.estimate_on == "validation":
        remark = f", {words.number_remark}" if words.number_remark else ""
        return (
            f"{_rule(cell.settings.inference.rule, decided)} on labeled validation images{remark}"
        )
    is_shifted = cell.clustering != ONE_STEP and get_method(cell.clustering).shifts
    shifts = f" after {count(inference.estimate_shifts, 'shift')}" if is_shifted else ""
    return f"{_rule(inference.rule, decided)} on all given labels{shifts}"


def _rule(asked: str, decided: Collection[str | None]) -> str:
    """The rule asked for and, where labels were too few for it in some cell, those that decided in its place."""
    named = sorted({rule for rule in decided if rule is not None})
    words = [f"decided by {' and '.join(map(repr, named))}"] if named not in ([], [asked]) else []
    # The paper's rule needs no number of labels: it always decides itself.
    words += ["which one decided was not kept"] if None in decided and asked != "paper" else []
    whose = "the paper's rule" if asked == "paper" else f"Shoal's rule '{asked}'"
    return whose + (f" ({'; '.join(words)})" if words else "")


def _snapshot(cell: Cell) -> str:
    if not get_method(cell.method).trains:
        return "none"
    if cell.setup == "unsupervised" or cell.settings.training.snapshot == "last":
        return "last epoch"
    with_k = " at the given K" if cell.selection == "given" else " over all K"
    return f"best epoch by {'HIDDEN labels' if cell.sees_hidden_labels else 'labeled validation images'}{with_k}"
