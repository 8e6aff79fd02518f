"""Tables: ours beside the paper's, mean and spread over seeds, and what a reader must know about them."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.data.benchmarks import BENCHMARKS
from shoal.methods.registry import get_method
from shoal.reproduce.choices import TITLES, Choices, choices_of, describe_making, grouped
from shoal.reproduce.experiment import COUNTS, SELECTIONS, Experiment, Plan, ReproduceOptions, Row, rows_to_run
from shoal.reproduce.paper import MISPRINTS, PAPER

COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": ("All", "Known", "Novel"),
    "recall": ("All", "Labeled", "Unlabeled"),
    "all": ("All",),
    "n_clusters": ("K", "Err %"),
    "classes": ("Known", "Novel"),
    "images": ("Images",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """One number: ours over seeds, and the paper's."""

    mean: float | None
    """None where no cell has been run."""
    spread: float | None
    """The standard deviation over seeds; None for a single one."""
    n_seeds: int
    paper: float | None

    def text(self, *, plus_minus: str = "±", paper_format: str = ".1f") -> str:
        """'52.6 ± 0.4 (68.2)'; a dash for ours where it was not run."""
        is_plain = paper_format == "g"
        ours = "–" if self.mean is None else f"{round(self.mean, 1):g}" if is_plain else f"{self.mean:.1f}"
        if self.spread is not None:
            ours += f" {plus_minus} {self.spread:.1f}"
        return ours if self.paper is None else f"{ours} ({self.paper:{paper_format}})"


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of the paper with our numbers in it."""

    experiment: Experiment
    datasets: tuple[str, ...]
    options: ReproduceOptions
    seeds: tuple[int, ...]
    entries: dict[tuple[str, str], tuple[TableEntry, ...]]
    """(row, dataset) -> an entry per column."""
    choices: dict[tuple[str, str], Choices]
    """(row, dataset) -> what was chosen, of the rows that are not quoted."""
    remarks: dict[tuple[str, str], tuple[str, ...]]
    """(row, dataset) -> what is strange about its cells, such as missing images, trainings that failed or collapsed."""
    images: dict[tuple[str, str], int]
    """(row, dataset) -> images of the training part, of the rows that were run."""

    @property
    def encoder(self) -> str:
        """The encoder of our numbers."""
        return self.options.encoder or self.experiment.encoder

    @property
    def columns(self) -> tuple[str, ...]:
        """What is shown of each dataset."""
        return COLUMNS[self.experiment.measure]

    @property
    def header(self) -> str:
        """The title, and under which protocol the numbers were made, where hidden labels took part."""
        chose = "" if self._is_unsupervised else ": hidden labels chose snapshot and K"
        protocol = "" if self.options.protocol == "paper" else f" (protocol '{self.options.protocol}'{chose})"
        return f"Table {self.experiment.name}: {self.experiment.title}{'' if self.experiment.is_count else protocol}"

    @property
    def notes(self) -> list[str]:
        """What a reader must know, in every form of the table."""
        if self.experiment.is_count:
            return ["Ours: counted in the folders. In parentheses the paper's.", *self._remarks]
        titles = {name: BENCHMARKS[name].title for name in self.datasets}
        made_with = describe_making(self.encoder, self.options.changes, self.choices, titles, self.seeds)
        spread = ", mean ± standard deviation" if len(self.seeds) > 1 else ""
        return [
            f"Ours: {made_with}{spread}; protocol '{self.options.protocol}', which says who chooses and not which "
            f"losses are taken ({self._selection}).",
            f"{self._papers} – not run.",
            *self.choice_notes,
            *MISPRINTS.get(self.experiment.name, ()),
            *self._remarks,
        ]

    @property
    def _remarks(self) -> list[str]:
        return list(dict.fromkeys(text for texts in self.remarks.values() for text in texts))

    @property
    def _papers(self) -> str:
        other = "" if self.encoder == self.experiment.encoder else ", another encoder"
        return f"In parentheses the paper's, with {self.experiment.encoder}{other}."

    @property
    def choice_notes(self) -> list[str]:
        """Losses, head, K, snapshot and starts of k-means of our rows; of each dataset where these differ."""
        notes: dict[str, list[str]] = {}
        for dataset in self.datasets:
            own = {row: found for (row, name), found in self.choices.items() if name == dataset}
            for text in filter(None, (grouped(own, name) for name in TITLES)):
                notes.setdefault(f"{text}.", []).append(BENCHMARKS[dataset].title)
        return [text if len(on) == len(self.datasets) else f"{', '.join(on)}: {text}" for text, on in notes.items()]

    @property
    def _setups(self) -> set[str]:
        return {row.setup for row in rows_to_run(self.experiment, self.options)}

    @property
    def _is_unsupervised(self) -> bool:
        """Whether there is nothing to choose by."""
        return self._setups == {"unsupervised"}

    @property
    def _selection(self) -> str:
        """How snapshot and K were chosen."""
        if self._is_unsupervised:
            return "no labels, so nothing to choose by: K given, the last snapshot, a fixed number of shifts"
        if self.options.protocol != "paper":
            methods = dict.fromkeys(row.methods[0] for row in rows_to_run(self.experiment, self.options))
            return "; ".join([*(get_method(method).released for method in methods), SELECTIONS[self.options.protocol]])
        if "inductive" in self._setups:  # as published
            return SELECTIONS["paper"] + ", 10 % of the images set aside for it"
        return (
            SELECTIONS["paper"] + f", {100 * self.options.validation_share:g} % of the labels kept from the loss for it"
        )


def build_table(
    plan: Plan, results: Mapping[str, Mapping[str, Any]], failures: Mapping[str, str] | None = None
) -> ResultTable:
    """Put the results of cells, by key, into their places; `failures` says why some of them have none."""
    experiment, datasets = plan.experiment, plan.datasets
    table = ResultTable(
        experiment=experiment,
        datasets=datasets,
        options=plan.options,
        seeds=plan.seeds,
        entries={},
        choices={},
        remarks={},
        images={},
    )
    for row, dataset in ((row, dataset) for row in experiment.rows for dataset in datasets):
        row_key, keys = (row.name, dataset), plan.keys(row, dataset)
        found = {key: results[key] for key in keys if key in results}
        if row_key in plan.grid:
            first = plan.grid[row_key][0]
            table.choices[row_key] = choices_of(first, [result.get("rule") for result in found.values()])
        if keys:
            table.remarks[row_key] = tuple(remarks_of(row, dataset, keys, found, failures or {}))
        numbers = {result["images"] for result in found.values() if "images" in result}
        table.images.update(dict.fromkeys([row_key], max(numbers)) if numbers else {})
        paper = PAPER.get(experiment.name, {}).get(row.name, {}).get(dataset)
        table.entries[row_key] = _entries(experiment.measure, list(found.values()), paper)
    return table


def remarks_of(
    row: Row,
    dataset: str,
    keys: Mapping[str, int | None],
    found: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> list[str]:
    """Sentences about the cells of a row: images, seeds that are missing, trainings that failed or collapsed."""
    title = BENCHMARKS[dataset].title
    notes = dict.fromkeys(f"{title}: {note}." for result in found.values() for note in result.get("notes", ()))
    skipped = max((result.get("images_skipped", 0) for result in found.values()), default=0)
    texts = [*notes, *([f"{title}: {skipped:,} image(s) could not be decoded and were left out."] if skipped else [])]
    if len(found) not in (0, len(keys)):
        texts.append(f"{row.name}, {title}: {len(found)} of {len(keys)} seeds only.")
    for key, seed in keys.items():
        who = f"{row.name}, {title}" + ("" if seed is None else f", seed {seed}")
        collapse = (found.get(key, {}).get("collapse") or {}).get("warning")
        texts += [f"{who}: {collapse}."] if collapse else []
        texts += [f"{who}: left out, {failures[key].rstrip('.')}."] if key in failures else []
    return texts


def _entries(
    measure: str, found: list[Mapping[str, Any]], paper: tuple[float | None, ...] | None
) -> tuple[TableEntry, ...]:
    columns = [_values(measure, result) for result in found]
    printed = paper or (None,) * len(COLUMNS[measure])
    return tuple(
        TableEntry(
            mean=statistics.fmean(ours) if ours else None,
            spread=statistics.stdev(ours) if len(ours) > 1 else None,
            n_seeds=len(ours),
            paper=theirs,
        )
        for ours, theirs in zip([[c[i] for c in columns] for i in range(len(printed))], printed, strict=True)
    )


def _values(measure: str, result: Mapping[str, Any]) -> list[float]:
    if measure in COUNTS:
        return list(map(float, result[measure]))
    if measure == "n_clusters":
        return [float(result["n_clusters"]), result["n_clusters_error"]]
    return [result["recall" if measure == "recall" else "accuracy"][name.lower()] for name in COLUMNS[measure]]
