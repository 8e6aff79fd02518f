"""Numbers and their nouns as a person reads them."""

import math
from collections.abc import Sequence

PLURALS = {
    "category": "categories",
    "class": "classes",
    "is": "are",
    "was": "were",
    "has": "have",
    "differs": "differ",
    "fits": "fit",
    "lies": "lie",
    "names": "name",
    "repeats": "repeat",
}

FEW_LABELS = 5
FEW_KNOWN = 8
"""Labeled images per known category, and known categories, that are few for an estimate of K."""

AVERAGE_LINKAGE = (
    "clusters are joined by average linkage: it puts more of the labeled images, taken alone, "
    "right than Ward's"
)
"""What is said where labels chose it."""


def count(n: int, noun: str) -> str:
    """A number with its noun: '1 image', '1,234 images'."""
    return f"{n:,} {plural(n, noun)}"


def plural(n: int, word: str) -> str:
    """The word as it stands after `n`; of several the last one changes."""
    if n == 1:
        return word
    before, space, last = word.rpartition(" ")
    return f"{before}{space}{PLURALS.get(last, f'{last}s')}"


def first_few(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """The first names, and that there are more: 'a, b, c, …'."""
    named = list(names[:most])
    if len(names) > most:
        named.append("…")
    return separator.join(named)


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: 'cms', 'cms and gcd', 'cms, gcd and pim'."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def percent(share: float) -> str:
    """A share of one as '81.2 %'; a dash for NaN."""
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.1f} %"


def number(value: float, digits: int = 2) -> str:
    """A number with fixed decimals; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """A time span in its two largest units: '2 h 05 min', '3 min 20 s', '4.2 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def span(values: Sequence[int]) -> str:
    """A range: '9–12', or '9' where there is only one."""
    low = min(values)
    high = max(values)
    if low == high:
        return f"{low}"
    return f"{low}–{high}"


def interval_in_words(interval: Sequence[int], asked: Sequence[int] | None = None) -> str:
    """The 80 % interval of an estimate, and the range that a user asked for, which it keeps to."""
    said = f"80 % interval {span(interval)}"
    if asked:
        said += f", within {span(asked)} as given"
    return said


def against_range(by_labels: Sequence[int]) -> str:
    """Say that labels speak against the range that was given."""
    return f"the labels suggest {span(by_labels)} categories, outside the given range"


def is_wide(interval: Sequence[int]) -> bool:
    """Whether an interval says little: its upper end is more than twice the lower one."""
    return max(interval) > 2 * min(interval)


def doubt_labels(n_labeled: int, n_known: int) -> str | None:
    """Say that an estimate of K rests on few labels, or on few known categories, where it does."""
    known = count(n_known, "known category")
    remedy = "give --n-clusters or label"
    if n_labeled < FEW_LABELS * n_known:
        few = f"{count(n_labeled, 'labeled image')} for {known}"
        return f"the number of categories is estimated from few labels, {few}; {remedy} more"
    if 0 < n_known < FEW_KNOWN:
        return f"the number of categories is estimated from {known}; {remedy} images of others"
    return None
