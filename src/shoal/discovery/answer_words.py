"""What is said of an answer in one line: categories, unsure images, how sure the number and the confidence are."""

from collections.abc import Sequence

from shoal.runs import UNSURE_BELOW, RunView, column
from shoal.words import count, likely, plural, span

UNCHECKED = "labels cannot check how far confidence can be trusted"


def answer_in_words(run: RunView, n_unsure: int | None = None) -> str:
    """The answer of a run: '14 known categories found, 9 likely new, 212 images unsure', and how sure K is.

    To know `n_unsure` already spares reading a row per image.
    """
    if n_unsure is None:
        n_unsure = sum(sure < UNSURE_BELOW for sure in column(run.assignments, "confidence"))
    counted = [row for row in run.categories if not row.between]
    known, novel = ([row.size for row in counted if row.is_novel == is_novel] for is_novel in (False, True))
    words = _counts(known, novel, n_unsure)
    estimate = run.json("estimate") if run.has("estimate.json") else {}
    interval, repeats = estimate.get("interval"), (estimate.get("stability") or {}).get("n_clusters")
    asked = estimate.get("range"), estimate.get("by_labels")
    sure = [likely(estimate["n_clusters"], interval, *asked)] if interval else []
    sure += [range_in_words(estimate["n_clusters"], repeats)] if repeats else []
    is_unchecked = run.has("calibration.json") and not run.json("calibration")["is_calibrated"]
    return "; ".join([words, *sure, *([UNCHECKED] if is_unchecked else [])])


def _counts(known_sizes: Sequence[int], novel_sizes: Sequence[int], n_unsure: int) -> str:
    """How many categories have images, of those that were known and of new ones, and how many images are unsure."""
    n_known, n_novel = (sum(size > 0 for size in sizes) for sizes in (known_sizes, novel_sizes))
    known = f"{count(n_known, 'known category')} found"
    if n_known < len(known_sizes):
        known += f" (of {len(known_sizes)})"
    return f"{known}, {n_novel} likely new, {count(n_unsure, 'image')} unsure"


def range_in_words(n_clusters: int, repeats: Sequence[int]) -> str:
    """What the repetitions gave, '9 to 10 categories over 3 random parts of the images', and a doubt where there is."""
    parts = f"{count(len(repeats), 'random part')} of the images"
    said = f"{span(repeats)} {plural(max(repeats), 'category')} over {parts}"
    doubt = doubt_range(n_clusters, repeats)
    return said if doubt is None else f"{said}: {doubt}"


def doubt_range(n_clusters: int, repeats: Sequence[int]) -> str | None:
    """Say that K lies outside of what the repetitions gave, which then say nothing about how far it can be trusted."""
    if not repeats or min(repeats) <= n_clusters <= max(repeats):
        return None
    side = "fewer" if n_clusters > max(repeats) else "more"
    return f"{side} than the {n_clusters:,} on all of them, so that number is unsteady"
