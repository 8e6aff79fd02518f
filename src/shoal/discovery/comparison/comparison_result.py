"""The result of a comparison: a row per method with its rank, and sentences that interpret it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.arrays import nan_to_null
from shoal.clustering.matching import Accuracy
from shoal.discovery.comparison.comparison_settings import FROZEN, title_of
from shoal.errors import DataError
from shoal.runs import Run, reading
from shoal.words import count, listed, percent

PAGE = "compare.html"

MAX_NAMED = 4
"""Methods named in a headline."""


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
    accuracy: Accuracy | None
    interval: tuple[float, float] | None
    ranks: tuple[int, int] | None
    ties: tuple[str, ...]
    n_clusters: tuple[int, ...]
    seconds: float
    run: str
    failed: str = ""

    @property
    def rank(self) -> str:
        """The rank as text: '1', or '1–3' if there are ties."""
        if self.ranks is None:
            return "–"
        low, high = self.ranks
        return f"{low}" if low == high else f"{low}–{high}"


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
            comparison = cls(
                path=run.path,
                rows=tuple(_read_row(row) for row in content["rows"]),
                pairs=tuple(content["pairs"]),
                held_out=content["held_out"],
                n_clusters=content["n_clusters"],
                epochs=content["epochs"],
                unfinished=tuple(content["unfinished"]),
                notes=tuple(content["notes"]),
                command=content["command"],
            )
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
        tied = [self.best.title, *(title_of(name) for name in self.best.ties)]
        if len(tied) > MAX_NAMED:
            tied = [*tied[: MAX_NAMED - 1], f"{len(tied) - MAX_NAMED + 1} more"]
        return f"Tie for first: {listed(tied)}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """An interpretation of the table: ties, whether training helps, and caveats."""
        sentences = [*self._about_best(), *self._about_training()]
        sentences += [f"{row.title} failed: {row.failed}." for row in self.rows if row.failed]
        if self.unfinished:
            unfinished = listed([title_of(name) for name in self.unfinished])
            sentences.append(
                f"Not finished: {unfinished}; to continue, run the same command with --resume."
            )
        if self.held_out["n_repeats"] == 1 and any(row.method in self.epochs for row in self.rows):
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
        tied = listed([title_of(name) for name in best.ties])
        return [f"{score}; the difference from {tied} is not significant."]

    def _about_training(self) -> list[str]:
        frozen = next((row for row in self.rows if row.method == FROZEN), None)
        trained = [row for row in self.rows if row.method in self.epochs and not row.failed]
        if frozen is None or not trained:
            return []
        above = self.rows[: self.rows.index(frozen)]
        better = [row.title for row in trained if row in above and FROZEN not in row.ties]
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
        return {
            "path": str(self.path),
            "page": str(self.page),
            "headline": self.headline,
            "sentences": list(self.sentences),
            "best": self.best.method,
            "rows": [{**nan_to_null(asdict(row)), "rank": row.rank} for row in self.rows],
            "pairs": list(self.pairs),
            "held_out": self.held_out,
            "n_clusters": self.n_clusters,
            "epochs": self.epochs,
            "unfinished": list(self.unfinished),
            "notes": list(self.notes),
            "command": self.command,
        }


def _line(row: Row, width: int) -> str:
    """Return a line of the table."""
    start = f"{row.rank:<5} {row.title:<{width}}  "
    if row.accuracy is None or row.interval is None:
        return f"{start}{row.failed}"
    interval = " – ".join(_points(end) for end in row.interval)
    known = _points(row.accuracy.known)
    novel = _points(row.accuracy.novel)
    scores = f"{_points(row.accuracy.all):>5} {interval:>13} {known:>6} {novel:>6}"
    return f"{start}{scores} {row.seconds:>8.1f}"


def _points(share: float) -> str:
    """Return a share in percent; a dash for NaN."""
    return f"{100 * share:.1f}" if math.isfinite(share) else "–"


def _read_row(content: Mapping[str, Any]) -> Row:
    """Return a row of comparison.json."""
    values = {name: value for name, value in content.items() if name != "rank"}
    for name in ("interval", "ranks", "ties", "n_clusters"):
        if values[name] is not None:
            values[name] = tuple(values[name])
    if values["accuracy"] is not None:
        scores = dict(values["accuracy"]).items()
        values["accuracy"] = Accuracy(
            **{name: math.nan if value is None else value for name, value in scores}
        )
    return Row(**values)
