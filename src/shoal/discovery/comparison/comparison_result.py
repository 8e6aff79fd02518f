"""What a comparison found: a row per method with its rank, ties in words, and the command that runs
the first."""

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
"""Methods in a headline."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method of a comparison, judged by the labels that were kept.

    Parameters
    ----------
    method
        The name of the method, as `--method` takes it.
    title
        The same for people.
    accuracy
        The mean of the draws; None where the method has failed.
    interval
        Where All likely lies.
    ranks
        The best and the worst rank that the kept labels allow; 1 is the first.
    ties
        The methods that cannot be told from this one.
    n_clusters
        The number of categories it was asked for, in each draw.
    seconds
        Training and clustering; the mean of the draws. Without reading and embedding the images and
        making views, which rows share. Where K is estimated, that of the encoder as it came has
        estimated it for all.
    run
        The folder of its run, in the first draw.
    failed
        Why there is no answer, where there is none.

    Examples
    --------
    >>> shares = {"accuracy": None, "interval": None, "ties": ()}
    >>> about = {"n_clusters": (5,), "seconds": 1.5, "run": "gcd"}
    >>> Row(method="gcd", title="GCD", ranks=(1, 3), **shares, **about).rank
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
        """'1', or '1–3' where ties leave it open."""
        if self.ranks is None:
            return "–"
        low, high = self.ranks
        return f"{low}" if low == high else f"{low}–{high}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods on the same images, judged by the same kept labels, the best first.

    Parameters
    ----------
    path
        The folder of the comparison.
    rows
        A row per method.
    pairs
        Each method against each other below it: the difference of All, its interval, and whether it
        is a tie.
    kept
        How many labels were kept, and which categories were kept whole, in each draw.
    n_clusters
        The number of categories that every method was given, and where it comes from.
    epochs
        How long each method was trained.
    unfinished
        Methods that are not in the table, because they were stopped; --resume goes on with them.
    notes
        What to doubt, a sentence each.
    command
        Runs the first method on everything; None where every image is labeled.

    Examples
    --------
    >>> accuracy = Accuracy(all=0.5, known=0.75, novel=0.25)
    >>> shares = {"accuracy": accuracy, "interval": (0.4, 0.6), "ranks": (1, 1), "ties": ()}
    >>> about = {"n_clusters": (5,), "seconds": 1.5, "run": "gcd"}
    >>> row = Row(method="gcd", title="GCD", **shares, **about)
    >>> kept = {"pairs": (), "kept": {"n_images": 40}, "n_clusters": {}, "epochs": {"gcd": 10}}
    >>> rest = {"unfinished": (), "notes": (), "command": ""}
    >>> comparison = Comparison(path=Path("runs/compared"), rows=(row,), **kept, **rest)
    >>> comparison.headline
    'First: GCD'
    >>> comparison.best.accuracy.all
    0.5
    """

    path: Path
    rows: tuple[Row, ...]
    pairs: tuple[dict[str, Any], ...]
    kept: dict[str, Any]
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
            What it found.
        """
        run = Run(Path(path))
        if not run.has("comparison.json"):
            raise DataError(
                f"{run.path}: no comparison here (no comparison.json); give the folder of one"
            )
        kept = run.json("comparison")
        with reading(run.path / "comparison.json"):
            result = cls(
                path=run.path,
                rows=tuple(_row_from(row) for row in kept["rows"]),
                pairs=tuple(kept["pairs"]),
                kept=kept["kept"],
                n_clusters=kept["n_clusters"],
                epochs=kept["epochs"],
                unfinished=tuple(kept["unfinished"]),
                notes=tuple(kept["notes"]),
                command=kept["command"],
            )
            result.in_words()  # what was edited into something else cannot be said
        return result

    @property
    def best(self) -> Row:
        """The method with the most kept images right; others may tie with it."""
        return self.rows[0]

    @property
    def page(self) -> Path:
        """The table and every method's categories side by side."""
        return self.path / PAGE

    @property
    def headline(self) -> str:
        """Name the first method, or those that tie for it."""
        if self.best.failed:
            return "No method has an answer"
        if not self.best.ties:
            return f"First: {self.best.title}"
        tied = [self.best.title, *(title_of(name) for name in self.best.ties)]
        if len(tied) > MAX_NAMED:
            tied = [*tied[: MAX_NAMED - 1], f"{len(tied) - MAX_NAMED + 1} more"]
        return f"A tie for first: {listed(tied)}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from the table: ties, whether training helps, and what to doubt."""
        sentences = [*self._about_first(), *self._about_training()]
        sentences += [
            f"{row.title} has no answer: {row.failed}." for row in self.rows if row.failed
        ]
        if self.unfinished:
            left = listed([title_of(name) for name in self.unfinished])
            sentences.append(f"Not finished: {left}; the same command with --resume continues.")
        if self.kept["n_draws"] == 1 and any(row.method in self.epochs for row in self.rows):
            sentences.append(
                "No training was repeated: chance in training is in no interval and no rank."
            )
        sentences += self.notes
        if self.command is None:
            sentences.append(
                "There is no command for the first: every image is labeled, so nothing is left to "
                "discover."
            )
        return tuple(f"{sentence[0].upper()}{sentence[1:]}" for sentence in sentences)

    def _about_first(self) -> list[str]:
        best = self.best
        if best.accuracy is None:
            return []
        images = count(self.kept["n_images"], "kept image")
        has = f"{best.title} puts {percent(best.accuracy.all)} of {images} right"
        if not best.ties:
            return [f"{has}, more than every other method beyond what chance would do."]
        tied = listed([title_of(name) for name in best.ties])
        words = f"{has}; {tied} cannot be told from it by these labels: that is a tie."
        return [words]

    def _about_training(self) -> list[str]:
        frozen = next((row for row in self.rows if row.method == FROZEN), None)
        trained = [row for row in self.rows if row.method in self.epochs and not row.failed]
        if frozen is None or not trained:
            return []
        above = self.rows[: self.rows.index(frozen)]
        better = [row.title for row in trained if row in above and FROZEN not in row.ties]
        if not better:
            return ["No training did clearly better than the encoder as it came."]
        return [
            f"Training helps here: {listed(better)} clearly did better than the encoder as it came."
        ]

    def in_words(self) -> str:
        """The table, what follows from it, and the command of the first."""
        width = max(len(row.title) for row in self.rows)
        shares = f"{'All':>5} {'95 %':>13} {'Known':>6} {'Novel':>6} {'seconds':>8}"
        lines = [f"{'rank':<5} {'method':<{width}}  {shares}"]
        lines += [_line(row, width) for row in self.rows]
        lines += ["", *self.sentences]
        if self.command is not None:
            lines += ["", "to run the first on everything:", self.command]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For comparison.json and --json: plain values, NaN as null."""
        return {
            "path": str(self.path),
            "page": str(self.page),
            "headline": self.headline,
            "sentences": list(self.sentences),
            "best": self.best.method,
            "rows": [{**nan_to_null(asdict(row)), "rank": row.rank} for row in self.rows],
            "pairs": list(self.pairs),
            "kept": self.kept,
            "n_clusters": self.n_clusters,
            "epochs": self.epochs,
            "unfinished": list(self.unfinished),
            "notes": list(self.notes),
            "command": self.command,
        }


def _line(row: Row, width: int) -> str:
    start = f"{row.rank:<5} {row.title:<{width}}  "
    if row.accuracy is None or row.interval is None:
        return f"{start}{row.failed}"
    interval = " – ".join(_points(end) for end in row.interval)
    known = _points(row.accuracy.known)
    novel = _points(row.accuracy.novel)
    shares = f"{_points(row.accuracy.all):>5} {interval:>13} {known:>6} {novel:>6}"
    return f"{start}{shares} {row.seconds:>8.1f}"


def _points(share: float) -> str:
    return f"{100 * share:.1f}" if math.isfinite(share) else "–"


def _row_from(plain: Mapping[str, Any]) -> Row:
    """A row as comparison.json has it."""
    values = {name: value for name, value in plain.items() if name != "rank"}
    for name in ("interval", "ranks", "ties", "n_clusters"):
        if values[name] is not None:
            values[name] = tuple(values[name])
    if values["accuracy"] is not None:
        shares = dict(values["accuracy"]).items()
        values["accuracy"] = Accuracy(
            **{name: math.nan if value is None else value for name, value in shares}
        )
    return Row(**values)
