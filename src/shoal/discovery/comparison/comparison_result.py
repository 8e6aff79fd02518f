"""What a comparison found: a row per method with its rank, ties in words, and the command that runs the first."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.arrays import nan_to_null
from shoal.clustering.matching import Accuracy
from shoal.discovery.comparison.comparison_settings import FROZEN, title_of
from shoal.errors import DataError
from shoal.runs import RunView, reading
from shoal.words import count, listed, percent

PAGE = "compare.html"

MAX_NAMED = 4
"""Methods in a headline."""

CLEARLY_LESS = 0.8
"""A share of the time of another; the same work takes more or less by as much on a busy machine."""


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
        Training and clustering; the mean of the draws. Without reading and embedding the images and making views, which
        rows share. Where K is estimated, that of the encoder as it came has estimated it for all.
    run
        The folder of its run, in the first draw.
    failed
        Why there is no answer, where there is none.

    Examples
    --------
    >>> rest = {"accuracy": None, "interval": None, "ties": (), "n_clusters": (5,), "seconds": 1.5, "run": "gcd"}
    >>> Row(method="gcd", title="GCD", ranks=(1, 3), **rest).rank
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
        Each method against each other below it: the difference of All, its interval, and whether it is a tie.
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
    >>> shares = {"interval": (0.4, 0.6), "ties": (), "n_clusters": (5,), "seconds": 1.5, "run": "gcd"}
    >>> row = Row(method="gcd", title="GCD", accuracy=Accuracy(all=0.5, known=0.75, novel=0.25), ranks=(1, 1), **shares)
    >>> rest = {"pairs": (), "n_clusters": {}, "epochs": {"gcd": 10}, "unfinished": (), "notes": (), "command": ""}
    >>> comparison = Comparison(path=Path("runs/compared"), rows=(row,), kept={"n_images": 40}, **rest)
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
        run = RunView(Path(path))
        if not run.has("comparison.json"):
            raise DataError(
                f"{run.path}: no comparison here (no comparison.json); give the folder of one"
            )
        kept = run.json("comparison")
        with reading(run.path / "comparison.json"):
            rows = tuple(_row_from(row) for row in kept["rows"])
            sequences: dict[str, Any] = {
                name: tuple(kept[name]) for name in ("pairs", "unfinished", "notes")
            }
            rest = {name: kept[name] for name in ("kept", "n_clusters", "epochs", "command")}
            result = cls(path=run.path, rows=rows, **sequences, **rest)
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
        if self.best.ties:
            tied = [self.best.title, *(title_of(name) for name in self.best.ties)]
            few = (
                tied
                if len(tied) <= MAX_NAMED
                else [*tied[: MAX_NAMED - 1], f"{len(tied) - MAX_NAMED + 1} more"]
            )
            return f"A tie for first: {listed(few)}"
        return f"First: {self.best.title}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from the table: ties, whether training helps, and what to doubt."""
        about = (*self._about_first(), *self._about_training(), *self._about_rest())
        sentences = (*about, *self._about_draws(), *self.notes, *self._about_command())
        return tuple(f"{sentence[0].upper()}{sentence[1:]}" for sentence in sentences)

    def _about_first(self) -> list[str]:
        best = self.best
        n_kept = self.kept["n_images"]
        if best.accuracy is None:
            return []
        has = (
            f"{best.title} puts {percent(best.accuracy.all)} of {count(n_kept, 'kept image')} right"
        )
        if not best.ties:
            return [f"{has}, more than every other method beyond what chance would do."]
        tied = listed([title_of(name) for name in best.ties])
        words = f"{has}; {tied} cannot be told from it by these labels: that is a tie."
        quicker = self._quicker()
        return [words if quicker is None else f"{words} The quickest of them is {quicker.title}."]

    def _quicker(self) -> Row | None:
        """Find the quickest of the methods that tie with the first, where it is clearly quicker than the first.

        Without training there are no views to make, which no row's seconds count, because trainings share them.
        """
        tied = [row for row in self.rows if row.method in (self.best.method, *self.best.ties)]
        untrained = [row for row in tied if row.method not in self.epochs]
        least = min(untrained or tied, key=lambda row: row.seconds)
        is_trained = self.best.method in self.epochs
        if is_trained != (least.method in self.epochs):
            return least
        return least if least.seconds < CLEARLY_LESS * self.best.seconds else None

    def _about_training(self) -> list[str]:
        frozen = next((row for row in self.rows if row.method == FROZEN), None)
        if frozen is None or frozen.failed:
            return []
        trained = [row for row in self.rows if row.method in self.epochs and not row.failed]
        above = self.rows[: self.rows.index(frozen)]
        better = [row.title for row in trained if row in above and FROZEN not in row.ties]
        if better:
            return [
                f"Training helps here: {listed(better)} clearly did better than the encoder as it came."
            ]
        return ["No training did clearly better than the encoder as it came."] if trained else []

    def _about_rest(self) -> list[str]:
        failed = [f"{row.title} has no answer: {row.failed}." for row in self.rows if row.failed]
        left = listed([title_of(name) for name in self.unfinished]) if self.unfinished else ""
        return [
            *failed,
            *([f"Not finished: {left}; the same command with --resume goes on."] if left else []),
        ]

    def _about_draws(self) -> list[str]:
        if self.kept["n_draws"] > 1 or not any(row.method in self.epochs for row in self.rows):
            return []
        return ["No training was repeated: chance in training is in no interval and no rank."]

    def _about_command(self) -> list[str]:
        nothing_left = "There is no command for the first: every image is labeled, so nothing is left to discover."
        return [nothing_left] if self.command is None else []

    def in_words(self) -> str:
        """The table, what follows from it, and the command of the first."""
        command = (
            [] if self.command is None else ["", "to run the first on everything:", self.command]
        )
        return "\n".join([*self._table(), "", *self.sentences, *command])

    def _table(self) -> list[str]:
        width = max(len(row.title) for row in self.rows)
        head = f"{'rank':<5} {'method':<{width}}  {'All':>5} {'95 %':>13} {'Known':>6} {'Novel':>6} {'seconds':>8}"
        return [head, *(_line(row, width) for row in self.rows)]

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
    if row.accuracy is None or row.interval is None:
        return f"{row.rank:<5} {row.title:<{width}}  {row.failed}"
    accuracy = row.accuracy
    between = " – ".join(_points(end) for end in row.interval)
    shares = f"{_points(accuracy.all):>5} {between:>13} {_points(accuracy.known):>6} {_points(accuracy.novel):>6}"
    return f"{row.rank:<5} {row.title:<{width}}  {shares} {row.seconds:>8.1f}"


def _points(share: float) -> str:
    return f"{100 * share:.1f}" if math.isfinite(share) else "–"


def _row_from(plain: Mapping[str, Any]) -> Row:
    """A row as comparison.json has it."""
    shares: Mapping[str, Any] | None = plain["accuracy"]
    if not isinstance(shares, Mapping | None):
        raise TypeError(f"accuracy: found {shares!r}")
    values = {name: value for name, value in plain.items() if name != "rank"}
    values |= {
        name: tuple(plain[name]) if plain[name] is not None else None
        for name in ("interval", "ranks")
    }
    values |= {name: tuple(plain[name]) for name in ("ties", "n_clusters")}
    of_images = {
        name: math.nan if value is None else value for name, value in (shares or {}).items()
    }
    return Row(**{**values, "accuracy": Accuracy(**of_images) if shares is not None else None})
