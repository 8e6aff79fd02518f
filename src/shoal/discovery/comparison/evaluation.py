"""Hold out labels from every method of a comparison, evaluate the methods on them, and rank them:
intervals by bootstrap, ties by sign-flip tests. The result has a row per method, and sentences that
interpret it.

The labels of some images and of some whole categories are held out, sampled as in `shoal discover`.
Methods see a collection without these labels, and without the names of categories held out whole.

All methods are evaluated on the same images, so two of them are compared image by image. The unit
that is resampled, or flipped, is a single image of a known category, or a whole category if all of
its labels were held out, because its images are not independent.

Shapes: N images, M methods, P pairs of them, J images whose labels are held out, in all repeats
together, U units, R resamples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations, compress
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED, Bools, Floats, Ints, nan_to_null
from shoal.clustering.matching import Accuracy, correct_images
from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import FROZEN, DiscoverySettings, title_of
from shoal.discovery.job import check_collection
from shoal.discovery.trained.evaluation import MIN_CATEGORIES, hold_out
from shoal.errors import (
    DataError,
    ShoalError,
    count,
    first_few,
    listed,
    number,
    percent,
    plural,
    span,
)
from shoal.files import write_text
from shoal.runs import COMPARED, Assignment, Run, csv_text, damaged, reading
from shoal.settings import Plain

PAGE = "compare.html"

# With fewer held-out labels, differences between methods would not be significant
MIN_HELD_OUT = 10

N_RESAMPLES = 2_000

# Resamples in memory at a time
BATCH_RESAMPLES = 100

# Confidence level of the intervals
LEVEL = 0.95

# Quantile of the normal distribution for that level
Z = 1.96

# Family-wise error rate: the probability that any pair of equal methods is not called a tie
MAX_FALSE = 0.05


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method of a comparison, evaluated on held-out labels.

    Parameters
    ----------
    method
        The name of the method, as `--method` takes it, or 'frozen'.
    title
        The title of the method, for people.
    accuracy
        The accuracy on the held-out labels of all repeats.
    interval
        The 95 % interval of All.
    ranks
        The best and the worst rank that the held-out labels allow; 1 is the first.
    rank
        The same as text: '1', or '1–3' if there are ties.
    ties
        The methods whose difference from this one is not significant.
    n_clusters
        The number of categories in each repeat.
    seconds
        Seconds of training and clustering, averaged over the repeats. Reading and embedding images
        and preparing views are shared by all rows and not included.
    run
        The folder of its run in the first repeat.

    Examples
    --------
    >>> accuracy = Accuracy(all=0.5, known=0.75, novel=0.25)
    >>> scores = {"accuracy": accuracy, "interval": [0.4, 0.6], "ties": ["cms", "simgcd"]}
    >>> details = {"n_clusters": [5], "seconds": 1.5, "run": "gcd"}
    >>> Row(method="gcd", title="GCD", ranks=[1, 3], rank="1–3", **scores, **details).ties
    ['cms', 'simgcd']
    """

    method: str
    title: str
    accuracy: Accuracy
    interval: list[float]
    ranks: list[int]
    rank: str
    ties: list[str]
    n_clusters: list[int]
    seconds: float
    run: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods evaluated on the same images and the same held-out labels, best first.

    Parameters
    ----------
    path
        The folder of the comparison.
    rows
        A row per method.
    pairs
        Each method against each one below it: the difference of All, its interval, and whether it
        is a tie.
    held_out
        How many labels were held out, and which whole categories, in each repeat.
    n_clusters
        The number of categories of every method in each repeat, and whether it was given.
    epochs
        The epochs of each trained method.
    unfinished
        Why methods are not in the table, by name: they were stopped, or failed.
    notes
        Caveats, a sentence each.
    command
        The command that runs the best method on the whole collection; None if every image is
        labeled.

    Examples
    --------
    >>> accuracy = Accuracy(all=0.5, known=0.75, novel=0.25)
    >>> scores = {"accuracy": accuracy, "interval": [0.4, 0.6], "ranks": [1, 1], "ties": []}
    >>> details = {"rank": "1", "n_clusters": [5], "seconds": 1.5, "run": "gcd"}
    >>> row = Row(method="gcd", title="GCD", **scores, **details)
    >>> labels = {"pairs": [], "held_out": {"n_images": 40}, "n_clusters": {}}
    >>> rest = {"epochs": {"gcd": 10}, "unfinished": {}, "notes": [], "command": ""}
    >>> comparison = Comparison(path=Path("runs/compared"), rows=[row], **labels, **rest)
    >>> comparison.headline
    'Best: GCD'
    >>> comparison.best.accuracy.all
    0.5
    """

    path: Path
    rows: list[Row]
    pairs: list[dict[str, Any]]
    held_out: dict[str, Any]
    n_clusters: dict[str, Any]
    epochs: dict[str, int]
    unfinished: dict[str, str]
    notes: list[str]
    command: str | None

    @classmethod
    def open(cls, path: Path | str) -> "Comparison":
        """Read a finished comparison from its folder.

        Parameters
        ----------
        path
            The folder that `compare` wrote.

        Returns
        -------
        Comparison
            The comparison.
        """
        run = Run(Path(path))
        if not run.has("comparison.json"):
            raise DataError(f"{run.path}: is not the folder of a comparison (no comparison.json)")
        with reading(run.path / "comparison.json"):
            content = {**run.json("comparison"), "path": run.path}
            content["rows"] = [_read_row(row) for row in content["rows"]]
            comparison = cls(**{field.name: content[field.name] for field in fields(cls)})
            comparison.in_words()  # raises if the file was edited into something else
        return comparison

    @property
    def best(self) -> Row:
        """The method with the highest held-out accuracy; others may tie with it."""
        return self.rows[0]

    @property
    def page(self) -> Path:
        """The HTML page with the table and every method's categories side by side."""
        return self.path / PAGE

    @property
    def headline(self) -> str:
        """The best method, or those that tie for the first rank."""
        if not self.best.ties:
            return f"Best: {self.best.title}"
        return f"Tie for first: {_titles([self.best.method, *self.best.ties])}"

    @property
    def sentences(self) -> list[str]:
        """An interpretation of the table: ties, whether training helps, and caveats."""
        best = self.best
        images = count(self.held_out["n_images"], "held-out image")
        score = f"{best.title}: {percent(best.accuracy.all)} of {images} correct"
        verdict = ", significantly more than every other method."
        if best.ties:
            verdict = f"; the difference from {_titles(best.ties)} is not significant."
        sentences = [score + verdict]
        names = [row.method for row in self.rows]
        if set(self.epochs).intersection(names):
            above = [row for row in self.rows[: names.index(FROZEN)] if row.method in self.epochs]
            better = [row.method for row in above if FROZEN not in row.ties]
            verdict = "No trained method is significantly better than the frozen encoder."
            if better:
                verdict = f"Significantly better than the frozen encoder: {_titles(better)}."
            sentences.append(verdict)
        for name in self.unfinished:
            sentences.append(f"{title_of(name)} is not in the table: {self.unfinished[name]}.")
        if self.held_out["n_repeats"] == 1 and self.epochs:
            sentences.append(
                "Every method was trained once: intervals and ranks do not include the variance "
                "of training."
            )
        sentences += self.notes
        if self.command is None:
            sentences.append("Every image is labeled, so there is nothing left to discover.")
        return [f"{sentence[0].upper()}{sentence[1:]}" for sentence in sentences]

    def in_words(self) -> str:
        """Return the table, its interpretation, and the command for the best method."""
        width = max(len(row.title) for row in self.rows)
        columns = f"{'All':>5} {'95 % interval':>13} {'Known':>6} {'Novel':>6} {'seconds':>8}"
        lines = [f"{'rank':<5} {'method':<{width}}  {columns}"]
        for row in self.rows:
            shares = (row.accuracy.all, *row.interval, row.accuracy.known, row.accuracy.novel)
            overall, low, high, known, novel = (number(100 * share, 1) for share in shares)
            scores = f"{overall:>5} {f'{low} – {high}':>13} {known:>6} {novel:>6}"
            lines.append(f"{row.rank:<5} {row.title:<{width}}  {scores} {row.seconds:>8.1f}")
        lines += ["", *self.sentences]
        if self.command is not None:
            lines += ["", "to run the best method with all labels:", self.command]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of comparison.json and --json: plain values, NaN as null."""
        content = asdict(self) | {
            "path": str(self.path),
            "page": str(self.page),
            "headline": self.headline,
            "sentences": self.sentences,
            "best": self.best.method,
        }
        return nan_to_null(content)


def _titles(names: Sequence[str]) -> str:
    return listed([*map(title_of, names)])


def _read_row(content: Mapping[str, Any]) -> Row:
    """Return a row of comparison.json, in which NaN is null."""
    shares = dict(content["accuracy"])
    accuracy = {name: math.nan if shares[name] is None else shares[name] for name in shares}
    return Row(**{**content, "accuracy": Accuracy(**accuracy)})


@dataclass(frozen=True, kw_only=True)
class LabelSplit:
    """A collection without its held-out labels, and these labels."""

    # The images with the labels that methods see
    collection: Collection
    rows: Ints  # (J,) the images whose labels are held out
    labels: Ints  # (J,) these labels, as positions in `classes`
    # The names of all labels of the user
    classes: tuple[str, ...]
    # The categories that are held out whole
    hidden: tuple[int, ...]

    @property
    def is_novel(self) -> Bools:
        """(J,) which of the images are of a category that is held out whole."""
        return np.isin(self.labels, self.hidden)

    @property
    def units(self) -> Ints:
        """(J,) the sampling unit of each image: the image, or its category if held out whole.

        A unit has the same number in every split of a collection.
        """
        return np.where(self.is_novel, len(self.collection) + self.labels, self.rows)

    @property
    def hidden_names(self) -> tuple[str, ...]:
        return tuple(self.classes[label] for label in self.hidden)

    def in_words(self) -> str:
        text = f"{count(len(self.rows), 'label')} held out from every method"
        if not self.hidden:
            return text
        n_novel = int(self.is_novel.sum())
        names = first_few(self.hidden_names)
        categories = count(len(self.hidden), "whole category")
        return f"{text}, {n_novel:,} of them of {categories} ({names})"


def split_labels(
    collection: Collection, settings: DiscoverySettings, repeat: int = 0
) -> LabelSplit:
    """Hold out labels; in the first repeat those that `shoal discover` holds out with this seed."""
    held_out = hold_out(collection, replace(settings, seed=settings.seed + repeat))
    rows = held_out.rows
    if len(rows) < MIN_HELD_OUT:
        raise DataError(
            f"{collection.count()}: {count(len(rows), 'label')} can be held out, and a comparison "
            f"needs {MIN_HELD_OUT}; label more images, two or more per category"
        )
    split = LabelSplit(
        collection=without_labels(collection, rows),
        rows=rows,
        labels=collection.labels[rows],
        classes=collection.classes,
        hidden=held_out.hidden,
    )
    try:
        check_collection(split.collection, settings)
    except ShoalError as error:
        raise type(error)(f"without the held-out labels, {error}") from error
    return split


def without_labels(collection: Collection, rows: Ints) -> Collection:
    """Return a collection without the labels of some images, and without categories that have no
    label left."""
    labels = collection.labels.copy()
    labels[rows] = UNLABELED
    is_labeled = labels != UNLABELED
    remaining, numbers = np.unique(labels[is_labeled], return_inverse=True)
    labels[is_labeled] = numbers
    classes = tuple(collection.classes[label] for label in remaining)
    return replace(collection, labels=labels, classes=classes)


def doubts(splits: Sequence[LabelSplit]) -> list[str]:
    """Return a sentence if few or no whole categories are held out."""
    hidden = {label for split in splits for label in split.hidden}
    if not hidden:
        return ["No whole category is held out, so accuracy on novel categories is not measured."]
    if len(hidden) < MIN_CATEGORIES:
        categories = f"{count(len(hidden), 'whole category')} {plural(len(hidden), 'is')}"
        return [f"Only {categories} held out, so Novel is a rough estimate; try --repeats 3."]
    return []


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """M methods, in the order of the input."""

    accuracy: Floats  # (M,)
    low: Floats  # (M,) the lower end of the interval of the accuracy
    high: Floats  # (M,) its upper end
    difference: Floats  # (M, M) the accuracy of the row's method minus that of the column's
    difference_interval: Floats  # (2, M, M) its interval, for each pair separately
    # (M, M) whether a difference is not significant, considering all pairs of the table
    is_tie: Bools

    def rank_range(self, method: int) -> list[int]:
        """Return the best and the worst rank that a method may have; 1 is the first."""
        significant = self.difference[method] * ~self.is_tie[method]
        best = 1 + int((significant < 0).sum())
        return [best, len(self.accuracy) - int((significant > 0).sum())]


def rank(is_correct: Bools, units: Ints, is_novel: Bools, *, seed: int = 0) -> Ranking:
    """Rank M methods; `is_correct` (M, J) is whether a method assigned an image correctly.

    Images with the same number in `units` (J,) are resampled together. Units of novel categories
    and the others are two strata, unless one of them is a single unit, which would have no variance
    on its own.
    """
    numbers, unit_of = np.unique(units, return_inverse=True)  # (U,) and (J,)
    sizes = np.bincount(unit_of)  # (U,)
    n_correct = np.stack(
        [np.bincount(unit_of[row], minlength=len(numbers)) for row in is_correct]
    )  # (M, U)
    is_novel_unit = np.zeros(len(numbers), dtype=bool)
    is_novel_unit[unit_of[is_novel]] = True
    resampled = _resample(n_correct, sizes, is_novel_unit, np.random.default_rng(seed))  # (R, M)
    ends = [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2]
    accuracy = is_correct.mean(axis=1)
    low, high = np.quantile(resampled, ends, axis=0)
    # If all images are correct, or none, all resamples are equal: use Wilson's interval.
    wilson = len(sizes) / (len(sizes) + Z**2)
    low[accuracy == 1] = wilson
    high[accuracy == 0] = 1 - wilson
    by_unit = n_correct[:, None] - n_correct[None]  # (M, M, U)
    return Ranking(
        accuracy=accuracy,
        low=low,
        high=high,
        difference=by_unit.sum(axis=2) / sizes.sum(),
        difference_interval=np.quantile(resampled[:, :, None] - resampled[:, None], ends, axis=0),
        is_tie=_ties(by_unit),
    )


def _resample(
    n_correct: Ints, sizes: Ints, is_novel_unit: Bools, rng: np.random.Generator
) -> Floats:
    """Return (R, M) the accuracy of each method on units resampled with replacement.

    `n_correct` (M, U): number of correct images in each unit; `sizes` (U,): number of all its
    images.
    """
    strata = [np.flatnonzero(is_novel_unit), np.flatnonzero(~is_novel_unit)]
    strata = [rows for rows in strata if len(rows)]
    if min(map(len, strata)) == 1:
        strata = [np.arange(len(sizes))]
    accuracies = []
    for _ in range(N_RESAMPLES // BATCH_RESAMPLES):
        times = np.zeros((BATCH_RESAMPLES, len(sizes)), dtype=np.int64)
        for rows in strata:
            uniform = np.full(len(rows), 1 / len(rows))
            times[:, rows] = rng.multinomial(len(rows), uniform, size=BATCH_RESAMPLES)
        accuracies.append((times @ n_correct.T) / (times @ sizes)[:, None])
    return np.concatenate(accuracies)


def _ties(by_unit: Ints) -> Bools:
    """Return (M, M) which differences are not significant, with all pairs as one family."""
    first, second = np.triu_indices(len(by_unit), k=1)  # (P,) each
    p_values = np.array([sign_flip_p(pair) for pair in by_unit[first, second]])
    is_tie = np.zeros(by_unit.shape[:2], dtype=bool)
    is_tie[first, second] = ~are_significant(p_values)
    return is_tie | is_tie.T


def sign_flip_p(by_unit: Ints) -> float:
    """Return the two-sided p-value of the exact sign-flip test for differences (U,).

    If two methods are equally good, the sign of each difference is a coin toss. The distribution of
    their sum over all 2^U tosses is built up difference by difference; zeros do not count.
    """
    observed = abs(int(by_unit.sum()))
    if observed == 0:
        return 1.0
    probabilities = np.ones(1)  # of the sums -n … n, where n is the sum of the sizes so far
    sizes = np.abs(by_unit[by_unit != 0]).tolist()
    for size in sizes:
        shift = np.zeros(2 * size)
        lower = np.append(probabilities, shift)
        upper = np.append(shift, probabilities)
        probabilities = (lower + upper) / 2
    return min(1.0, 2 * float(probabilities[sum(sizes) + observed :].sum()))


def are_significant(p_values: Floats) -> Bools:
    """Return (P,) which differences are significant by Holm's method."""
    order = np.argsort(p_values, kind="stable")
    is_below = p_values[order] < MAX_FALSE / np.arange(len(p_values), 0, -1)
    is_significant = np.zeros(len(p_values), dtype=bool)
    is_significant[order] = np.logical_and.accumulate(is_below)
    return is_significant


def run_folder(path: Path, method: str, repeat: int) -> Path:
    return path / COMPARED / (method if repeat == 0 else f"{method}-{repeat + 1}")


def evaluate(
    path: Path, methods: Iterable[str], splits: Sequence[LabelSplit], seed: int
) -> tuple[list[Row], list[Plain]]:
    """Return a row for each method whose runs are finished, best first, and each pair of rows.

    Write held_out.csv: the held-out labels, the category that each method predicts, and whether it
    is correct.
    """
    is_novel = np.concatenate([split.is_novel for split in splits])
    columns: dict[str, Iterable[object]] = {
        "repeat": [number for number, split in enumerate(splits, start=1) for _ in split.rows],
        "path": [split.collection.names[row] for split in splits for row in split.rows],
        "label": [split.classes[label] for split in splits for label in split.labels],
        "is_novel": _texts(is_novel),
    }
    runs_of = {}
    correct = {}
    for method in methods:
        runs = [Run(run_folder(path, method, repeat)) for repeat in range(len(splits))]
        if not all(run.is_finished for run in runs):
            continue
        found = [held_out_rows(*both) for both in zip(runs, splits, strict=True)]
        is_correct = [find_correct(*both) for both in zip(splits, found, strict=True)]
        runs_of[method] = runs
        correct[method] = np.concatenate(is_correct)
        columns[method] = [row.category for rows in found for row in rows]
        columns[f"{method}_correct"] = _texts(correct[method])
    write_text(path / "held_out.csv", csv_text(list(columns), zip(*columns.values(), strict=True)))
    names = sorted(correct, key=lambda name: -correct[name].mean())
    units = np.concatenate([split.units for split in splits])
    ranking = rank(np.stack([correct[name] for name in names]), units, is_novel, seed=seed)
    rows = []
    for index, name in enumerate(names):
        records = [run.provenance for run in runs_of[name]]
        ranks = ranking.rank_range(index)
        row = Row(
            method=name,
            title=title_of(name),
            accuracy=Accuracy(
                ranking.accuracy[index].item(),
                _share(correct[name][~is_novel]),
                _share(correct[name][is_novel]),
            ),
            interval=[ranking.low[index].item(), ranking.high[index].item()],
            ranks=ranks,
            rank=span(ranks),
            ties=list(compress(names, ranking.is_tie[index])),
            n_clusters=[record["n_clusters"] for record in records],
            seconds=sum(record["seconds"] for record in records) / len(records),
            run=str(runs_of[name][0].path),
        )
        rows.append(row)
    pairs = [
        {
            "methods": [names[index], names[other]],
            "difference": ranking.difference[index, other].item(),
            "interval": ranking.difference_interval[:, index, other].tolist(),
            "is_tie": ranking.is_tie[index, other].item(),
        }
        for index, other in combinations(range(len(names)), 2)
    ]
    return rows, pairs


def held_out_rows(run: Run, split: LabelSplit) -> list[Assignment]:
    rows = run.assignments
    if tuple(row.path for row in rows) != split.collection.names:
        raise damaged(run.path / "assignments.csv", "its images are not those compared")
    return [rows[index] for index in split.rows]


def find_correct(split: LabelSplit, rows: Sequence[Assignment]) -> Bools:
    """Return (J,) which held-out images are correct, from their rows in a run.

    An image of a known category is correct in the category of that name. Categories held out whole
    have no name in the run: they are matched one to one with novel categories (Hungarian).
    """
    labels = np.array([split.classes[label] for label in split.labels], dtype=object)
    names = np.array([row.category for row in rows], dtype=object)
    is_found_novel = np.array([row.is_novel for row in rows])
    is_correct = np.array(names == labels, dtype=bool)
    both = split.is_novel & is_found_novel
    is_correct[both] = correct_images(labels[both], names[both])
    return is_correct


def _texts(values: Bools) -> list[str]:
    return [str(value).lower() for value in values.tolist()]


def _share(is_correct: Bools) -> float:
    """Return the share of correct images; NaN for none."""
    return is_correct.mean().item() if len(is_correct) else math.nan
