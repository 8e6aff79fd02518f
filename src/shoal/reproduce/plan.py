"""The plan of an experiment: the cells it is made of.

A cell is one number's worth of work: a dataset, a method with its settings, how its embeddings are clustered, whether K
is given. Cells know nothing of tables, so what two tables share is computed once.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoal.data.benchmarks import Part
from shoal.device import check_seed
from shoal.encoders.catalog import ENCODERS
from shoal.errors import UsageError
from shoal.methods.protocols import follow_protocol
from shoal.methods.registry import get_method, load_recipe, recipe_for, with_encoder
from shoal.methods.setting_changes import change_settings, plain_name
from shoal.reproduce.experiment import (
    COUNTS,
    FIGURES,
    Experiment,
    ReproduceOptions,
    Setup,
    TableRow,
    rows_to_run,
)
from shoal.settings import to_dict


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One dataset, method, settings, seed and way of clustering; equal identities are the same work."""

    dataset: str
    method: str
    settings: Any
    clustering: str
    clustering_settings: Any
    """The settings of the method that clusters."""
    n_clusters: str
    setup: Setup
    selection: str
    figure: str | None
    """The figure whose material is gathered; None for a table."""
    validation_share: float
    """0 where none are set aside: the released code, transductive."""
    protocol: str = "paper"

    @cached_property
    def sees_hidden_labels(self) -> bool:
        """Whether hidden labels choose the snapshot and K; without any training or label there is nothing to choose."""
        return (
            self.protocol == "reference"
            and get_method(self.method).trains
            and self.setup != "unsupervised"
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the dataset that it needs."""
        return (
            ("train", "test")
            if self.setup == "inductive" or self.sees_hidden_labels
            else ("train",)
        )

    @cached_property
    def input_size(self) -> int | None:
        """Side of the images; None: what the encoder, which is not in the catalog, was made for."""
        size = self.settings.input_size
        known = ENCODERS.get(self.settings.encoder)
        return known.input_format.size if size is None and known is not None else size

    @property
    def training(self) -> dict[str, Any]:
        """What must be equal for two cells to share what is learned."""
        return {
            "dataset": self.dataset,
            "method": self.method,
            "settings": to_dict(self.settings),
            "setup": self.setup,
            "selection": self.selection,
            "validation_share": self.validation_share,
            "protocol": self.protocol,
        }

    @property
    def identity(self) -> dict[str, Any]:
        """Everything the result depends on besides images and code."""
        return self.training | {
            "clustering": self.clustering,
            "clustering_settings": to_dict(self.clustering_settings),
            "n_clusters": self.n_clusters,
            "figure": self.figure,
        }

    @cached_property
    def training_key(self) -> str:
        """A short name for `training`."""
        return _digest(self.training)

    @cached_property
    def key(self) -> str:
        """The name of the cell's file: readable, then a checksum of its identity."""
        words = f"{self.dataset}_{self.method}_{self.clustering}_{self.n_clusters}"
        return f"{words}{protocol_suffix(self.protocol)}_{_digest(self.identity)}"


def protocol_suffix(protocol: str) -> str:
    """What is added to the names of files; nothing for the protocol that sees no hidden label."""
    return "" if protocol == "paper" else f"_{protocol}"


def make_cell(
    experiment: Experiment, row: TableRow, dataset: str, seed: int, options: ReproduceOptions
) -> Cell:
    """The cell of a row, a dataset and a seed."""
    assert row.method is not None
    (first, second) = row.methods
    trains = get_method(row.method).trains
    encoder = options.encoder or experiment.encoder
    share = options.validation_share if options.protocol == "paper" else 0.0
    return Cell(
        dataset=dataset,
        method=row.method,
        settings=_settings(first, row, dataset, encoder, options).with_seed(seed),
        clustering=row.clustering or row.method,
        # Nothing is drawn on frozen features, so that they have one cell for all seeds.
        clustering_settings=_settings(second, row, dataset, encoder, options).with_seed(
            seed if trains else 0
        ),
        n_clusters=row.n_clusters,
        setup=row.setup,
        # A method with a classifier is told K before it trains, where it is given.
        selection=row.n_clusters if get_method(row.method).needs_n_clusters else row.selection,
        figure=experiment.measure if experiment.measure in FIGURES else None,
        validation_share=0.1 if row.setup == "inductive" else share,
        protocol=options.protocol,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """An experiment on some datasets with some seeds: its cells, built once."""

    experiment: Experiment
    options: ReproduceOptions
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    grid: Mapping[tuple[str, str], tuple[Cell, ...]]
    """(row, dataset) -> a cell per seed; without the rows that are only quoted."""

    @cached_property
    def cells(self) -> list[Cell]:
        """All of them, dataset by dataset."""
        return [cell for cells in self.grid.values() for cell in cells]

    def keys(self, row: TableRow, dataset: str) -> dict[str, int | None]:
        """The cells of a row by key, each with its seed; one without any where the method draws nothing.

        What is counted has the name of the dataset for a key.
        """
        if self.experiment.measure in COUNTS:
            return {dataset: None}
        cells = self.grid.get((row.name, dataset), ())
        return {
            cell.key: seed if get_method(cell.method).trains else None
            for cell, seed in zip(cells, self.seeds, strict=bool(cells))
        }


def _check_owned(experiment: Experiment, options: ReproduceOptions) -> None:
    """Refuse a change of what the rows of a table differ in: their names would no longer say what they are."""
    own = {name for row in experiment.rows for name in (*row.changes, *row.derived)}
    for name in options.changes:
        if plain_name(name) in own:
            raise UsageError(
                f"--set {name}: Table {experiment.name} sets it row by row; leave it out, or run another table with it"
            )


def make_plan(
    experiment: Experiment, datasets: Iterable[str], seeds: Iterable[int], options: ReproduceOptions
) -> Plan:
    """Build the cells of an experiment on those datasets; a method that draws nothing has one cell for all seeds."""
    datasets = tuple(datasets)
    seeds = tuple(seeds)
    if not datasets or not seeds:
        raise UsageError(
            "reproduce: found no dataset or no seed; give --root DATASET=FOLDER and --seeds 0"
        )
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise UsageError(
            f"--seeds: found {', '.join(map(str, twice))} more than once; the same seed is the same run, and no spread"
        )
    for seed in seeds:
        check_seed(seed)
    _check_owned(experiment, options)
    grid = {
        (row.name, dataset): tuple(
            make_cell(experiment, row, dataset, seed, options) for seed in seeds
        )
        for dataset in datasets
        for row in rows_to_run(experiment, options)
    }
    return Plan(experiment=experiment, options=options, datasets=datasets, seeds=seeds, grid=grid)


def _settings(
    method: str, row: TableRow, dataset: str, encoder: str, options: ReproduceOptions
) -> Any:
    """The recipe for dataset and encoder, then the protocol, then what the user chose, then what makes the row."""
    recipe = load_recipe(recipe_for(dataset, encoder, method), method)
    if options.protocol == "reference":
        recipe = follow_protocol(recipe, "reference", method)
    recipe = with_encoder(recipe, encoder)
    chosen = {"input_size": options.input_size, **options.changes, **row.changes}
    where = f"{method} on {dataset}"
    settings = change_settings(recipe, method, chosen, where=where)
    derived = {name: compute(settings) for name, compute in row.derived.items()}
    return change_settings(settings, method, derived, where=where)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
