"""The result of a comparison: a row per method with its rank, and sentences that interpret it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from shoal.arrays import nan_to_null
from shoal.clustering.matching import Accuracy
from shoal.discovery.comparison.comparison_settings import FROZEN, title_of
from shoal.errors import DataError
from shoal.runs import Run, reading
from shoal.words import count, listed, number, percent, span

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
        The mean accuracy over the repeats; None if the method failed.
    interval
        The 95 % interval of All.
    ranks
        The best and the worst rank that the held-out labels allow; 1 is the first.
    ties
        The methods whose difference from this one is not significant.
    n_clusters
        The number of categories in each repeat.
    seconds
        Seconds of training and clustering, averaged over the repeats. Reading and embedding images
        and preparing views are shared by all rows and not included.
    run
        The folder of its run in the first repeat.
    failed
        The reason if the method failed, else empty.

    Examples
    --------
    >>> scores = {"accuracy": None, "interval": None, "ties": ()}
    >>> details = {"n_clusters": (5,), "seconds": 1.5, "run": "gcd"}
    >>> Row(method="gcd", title="GCD", ranks=(1, 3), **scores, **details).rank
    '1–3'
    """

    method: str
    title: str
    accuracy: Accuracy | None = None
    interval: tuple[float, float] | None = None
    ranks: tuple[int, int] | None = None
    ties: tuple[str, ...] = ()
    n_clusters: tuple[int, ...]
    seconds: float
    run: str
    failed: str = ""

    @property
    def rank(self) -> str:
        """The rank as text: '1', or '1–3' if there are ties."""
        if self.ranks is None:
            return "–"
        return span(self.ranks)


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
        Methods that are not in the table because they were stopped; --resume continues them.
    notes
        Caveats, a sentence each.
    command
        The command that runs the best method on the whole collection; None if every image is
        labeled.

    Examples
    --------
    >>> accuracy = Accuracy(all=0.5, known=0.75, novel=0.25)
    >>> scores = {"accuracy": accuracy, "interval": (0.4, 0.6), "ranks": (1, 1), "ties": ()}
    >>> details = {"n_clusters": (5,), "seconds": 1.5, "run": "gcd"}
    >>> row = Row(method="gcd", title="GCD", **scores, **details)
    >>> labels = {"pairs": (), "held_out": {"n_images": 40}, "n_clusters": {}}
    >>> rest = {"epochs": {"gcd": 10}, "unfinished": (), "notes": (), "command": ""}
    >>> comparison = Comparison(path=Path("runs/compared"), rows=(row,), **labels, **rest)
    >>> comparison.headline
    'Best: GCD'
    >>> comparison.best.accuracy.all
    0.5
    """

    path: Path
    rows: tuple[Row, ...]
    pairs: tuple[dict[str, Any], ...]
    held_out: dict[str, Any]
    n_clusters: dict[str, Any]
    epochs: dict[str, int]
    unfinished: tuple[str, ...]
    notes: tuple[str, ...]
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
        content = run.json("comparison")
        with reading(run.path / "comparison.json"):
            content["rows"] = [_read_row(row) for row in content["rows"]]
            comparison = cls(**_values(cls, {**content, "path": run.path}))
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
        if self.best.failed:
            return "Every method failed"
        if not self.best.ties:
            return f"Best: {self.best.title}"
        tied = [self.best.title, *map(title_of, self.best.ties)]
        return f"Tie for first: {listed(tied)}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """An interpretation of the table: ties, whether training helps, and caveats."""
        sentences = [*self._about_best(), *self._about_training()]
        sentences += [f"{row.title} failed: {row.failed}." for row in self.rows if row.failed]
        if self.unfinished:
            unfinished = listed([*map(title_of, self.unfinished)])
            sentences.append(
                f"Not finished: {unfinished}; to continue, run the same command with --resume."
            )
        if self.held_out["n_repeats"] == 1 and self.epochs:
            sentences.append(
                "Every method was trained once: intervals and ranks do not include the variance "
                "of training."
            )
        sentences += self.notes
        if self.command is None:
            sentences.append("Every image is labeled, so there is nothing left to discover.")
        return tuple(f"{sentence[0].upper()}{sentence[1:]}" for sentence in sentences)

    def _about_best(self) -> list[str]:
        best = self.best
        if best.accuracy is None:
            return []
        images = count(self.held_out["n_images"], "held-out image")
        score = f"{best.title}: {percent(best.accuracy.all)} of {images} correct"
        if not best.ties:
            return [f"{score}, significantly more than every other method."]
        tied = listed([*map(title_of, best.ties)])
        return [f"{score}; the difference from {tied} is not significant."]

    def _about_training(self) -> list[str]:
        names = [row.method for row in self.rows if not row.failed]
        if not set(self.epochs).intersection(names):
            return []
        above = [row for row in self.rows[: names.index(FROZEN)] if row.method in self.epochs]
        better = [row.title for row in above if FROZEN not in row.ties]
        if not better:
            return ["No trained method is significantly better than the frozen encoder."]
        return [f"Significantly better than the frozen encoder: {listed(better)}."]

    def in_words(self) -> str:
        """Return the table, its interpretation, and the command for the best method."""
        width = max(len(row.title) for row in self.rows)
        columns = f"{'All':>5} {'95 % interval':>13} {'Known':>6} {'Novel':>6} {'seconds':>8}"
        lines = [f"{'rank':<5} {'method':<{width}}  {columns}"]
        lines += [_line(row, width) for row in self.rows]
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
            "rows": [{**asdict(row), "rank": row.rank} for row in self.rows],
        }
        plain: dict[str, Any] = nan_to_null(content)
        return plain


def _line(row: Row, width: int) -> str:
    """Return a line of the table."""
    start = f"{row.rank:<5} {row.title:<{width}}  "
    if row.accuracy is None or row.interval is None:
        return f"{start}{row.failed}"
    shares = (row.accuracy.all, *row.interval, row.accuracy.known, row.accuracy.novel)
    overall, low, high, known, novel = (number(100 * share, 1) for share in shares)
    scores = f"{overall:>5} {f'{low} – {high}':>13} {known:>6} {novel:>6}"
    return f"{start}{scores} {row.seconds:>8.1f}"


def _read_row(content: Mapping[str, Any]) -> Row:
    """Return a row of comparison.json."""
    values = _values(Row, content)
    if values["accuracy"] is not None:
        scores = dict(values["accuracy"]).items()
        values["accuracy"] = Accuracy(
            **{name: math.nan if value is None else value for name, value in scores}
        )
    return Row(**values)


def _values(cls: type[Row | Comparison], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a class from JSON, with tuples for lists."""
    values = {field.name: content[field.name] for field in fields(cls)}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return values | lists
