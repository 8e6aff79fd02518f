"""The result of a comparison: a row per method with its rank, and sentences that interpret it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from shoal.arrays import nan_to_null
from shoal.clustering.matching import Accuracy
from shoal.discovery.comparison.comparison_settings import FROZEN, title_of
from shoal.errors import DataError
from shoal.runs import Run, reading
from shoal.words import count, listed, number, percent

PAGE = "compare.html"


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
