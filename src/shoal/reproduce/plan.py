"""The cells of an experiment, and the options that hold for all of them.

A cell is the work behind one number: a dataset, a method with its settings, how its embeddings are
clustered, and whether K is given. Cells do not refer to tables, so a cell that two tables share is
computed once.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shoal.data.benchmarks import Part
from shoal.device import check_seed
from shoal.encoders.catalog import ENCODERS
from shoal.errors import UnknownName, UsageError
from shoal.methods.method import MethodSettings, TrainedSettings
from shoal.methods.registry import (
    METHODS,
    change_settings,
    follow_protocol,
    get_method,
    has_setting,
    load_recipe,
    plain_name,
    recipe_for,
    with_encoder,
)
from shoal.reproduce.experiments import Experiment, KSource, Setup, TableRow
from shoal.settings import Plain, to_dict

PROTOCOLS = {
    "paper": "snapshot, K and number of shifts are chosen by the labels of labeled images",
    "reference": "losses, head, bank and views of the released code; snapshot and K are chosen by "
    "HIDDEN labels, which no user has: not comparable with the protocol 'paper'",
}

# Share of the images held out for validation; in the inductive tables a tenth, as published
VALIDATION_SHARE = 0.2
INDUCTIVE_SHARE = 0.1

# Settings that have a separate option or are fixed by the rows, so that --set refuses them
FIXED_SETTINGS = {
    "seed",
    "training.seed",
    "encoder",
    "input_size",
    "protocol",
    "method",
    "n_clusters",
    "selection",
}


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Options that hold for all cells of a run."""

    # None: the paper's encoder for each table
    encoder: str | None = None
    input_size: int | None = None
    # Settings for every row, by dotted name; with a method's name in front, as in
    # 'cms.loss.temperature', for that method alone. The changes of a row are applied after them.
    changes: Plain = field(default_factory=dict)
    protocol: str = "paper"
    # Run only the rows of these methods; empty: all of them
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise UnknownName("protocol", self.protocol, PROTOCOLS)
        for name in self.methods:
            get_method(name)

    def rows_to_run(self, experiment: Experiment) -> list[TableRow]:
        """Return the rows of a table that are run rather than only quoted from the paper."""
        methods = self.methods or METHODS
        return [row for row in experiment.rows if row.method in methods]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A dataset, method, settings, seed and clustering; cells with equal keys are the same work."""

    dataset: str
    method: str
    settings: MethodSettings
    clustering: str
    clustering_settings: MethodSettings
    n_clusters: KSource
    setup: Setup
    selection: KSource
    # 0 in the transductive setup for the released code, which holds nothing out, and for methods
    # that do not use validation images
    validation_share: float
    protocol: str

    @property
    def trained(self) -> TrainedSettings | None:
        return self.settings if isinstance(self.settings, TrainedSettings) else None

    @property
    def sees_hidden_labels(self) -> bool:
        """Whether hidden labels choose the snapshot and K.

        Without training or without labels there is nothing to choose.
        """
        has_choice = self.trained is not None and self.setup != "unsupervised"
        return self.protocol == "reference" and has_choice

    @property
    def parts(self) -> tuple[Part, ...]:
        if self.setup == "inductive" or self.sees_hidden_labels:
            return ("train", "test")
        return ("train",)

    @property
    def input_size(self) -> int | None:
        """Side of the images; None: that of an encoder outside the catalog, read from its files."""
        encoder = ENCODERS.get(self.settings.encoder)
        if self.settings.input_size is None and encoder is not None:
            return encoder.input_format.size
        return self.settings.input_size

    @cached_property
    def training_key(self) -> str:
        """A checksum of everything that must be equal for two cells to need the same training."""
        training = to_dict(self)
        for name in ("clustering", "clustering_settings", "n_clusters"):
            del training[name]
        return _digest(training)

    @cached_property
    def key(self) -> str:
        """The name of the cell's file: readable words, then a checksum of all fields."""
        words = [self.dataset, self.method, self.clustering, self.n_clusters]
        if self.protocol != "paper":
            words.append(self.protocol)
        return "_".join([*words, _digest(to_dict(self))])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cells of an experiment on some datasets with some seeds."""

    experiment: Experiment
    options: ReproduceOptions
    datasets: Sequence[str]
    seeds: Sequence[int]
    # (row, dataset) -> a cell per seed, or a single one if the row does not train
    grid: Mapping[tuple[str, str], Sequence[Cell]]

    @property
    def cells(self) -> list[Cell]:
        return [cell for cells in self.grid.values() for cell in cells]

    @property
    def encoder(self) -> str:
        return self.options.encoder or self.experiment.encoder


def check_changes(experiments: Sequence[Experiment], options: ReproduceOptions) -> None:
    """Refuse a change of a setting that the rows of these tables determine, or that none has."""
    rows = [row for experiment in experiments for row in options.rows_to_run(experiment)]
    methods = {method for row in rows for method in row.methods}
    fixed = FIXED_SETTINGS.union(*(row.changes for row in rows))
    for name in options.changes:
        if plain_name(name) in fixed:
            raise UsageError(
                f"--set {name}: is set by another option or by the rows; leave it out, "
                "or run another table with it"
            )
        owners = {method for method in METHODS if has_setting(method, name)}
        if owners and not owners & methods:
            raise UsageError(f"--set {name}: no row of these tables has this setting; leave it out")


def make_plan(
    experiment: Experiment, datasets: Sequence[str], seeds: Sequence[int], options: ReproduceOptions
) -> Plan:
    if not seeds or len(set(seeds)) < len(seeds):
        found = ", ".join(map(str, seeds)) or "none"
        raise UsageError(f"--seeds: found {found}, expected different seeds, as in 0,1,2")
    for seed in seeds:
        check_seed(seed)
    grid = {}
    for dataset in datasets:
        for row in options.rows_to_run(experiment):
            # Frozen features are the same for every seed.
            row_seeds = seeds if get_method(row.methods[0]).trains else (0,)
            grid[row.name, dataset] = [
                make_cell(experiment, row, dataset, seed, options) for seed in row_seeds
            ]
    return Plan(
        experiment=experiment,
        options=options,
        datasets=datasets,
        seeds=seeds,
        grid=grid,
    )


def make_cell(
    experiment: Experiment, row: TableRow, dataset: str, seed: int, options: ReproduceOptions
) -> Cell:
    trained_method, clustering_method = row.methods
    encoder = options.encoder or experiment.encoder

    def settings_of(method: str) -> MethodSettings:
        """Return the recipe, changed by the protocol, then by the user, the row and the seed."""
        settings: MethodSettings = load_recipe(recipe_for(dataset, encoder, method), method)
        if options.protocol == "reference":
            settings = follow_protocol(settings, "reference", method)
        settings = with_encoder(settings, encoder)
        changes = {"input_size": options.input_size, **options.changes, **row.changes}
        changes["training.seed"] = seed
        return change_settings(settings, method, changes, where=f"{method} on {dataset}")

    settings = settings_of(trained_method)
    method = get_method(trained_method)
    selection = row.selection
    if method.needs_n_clusters or method.uses_n_clusters:
        selection = row.n_clusters  # a given K is given to training too
    share = 0.0
    if row.setup == "inductive":
        share = INDUCTIVE_SHARE
    elif options.protocol == "paper" and method.uses_validation(settings):
        share = VALIDATION_SHARE
    return Cell(
        dataset=dataset,
        method=trained_method,
        settings=settings,
        clustering=row.clustering or trained_method,
        clustering_settings=settings_of(clustering_method),
        n_clusters=row.n_clusters,
        setup=row.setup,
        selection=selection,
        validation_share=share,
        protocol=options.protocol,
    )


def _digest(content: Plain) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
