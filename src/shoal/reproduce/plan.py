"""Which cells an experiment is made of, and what a user may choose for all of them.

A cell is one number's worth of work: a dataset, a method with its settings, how its embeddings are
clustered, whether K is given. Cells know nothing of tables, so what two tables share is computed
once.
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
from shoal.methods.protocols import follow_protocol
from shoal.methods.registry import METHODS, get_method, load_recipe, recipe_for, with_encoder
from shoal.methods.setting_changes import change_settings, has_setting, plain_name
from shoal.reproduce.experiments import FIGURES, Experiment, Number, Setup, TableRow
from shoal.settings import to_dict

SELECTIONS = {
    "paper": "snapshot, K and shifts chosen by given labels only",
    "reference": "the released code's losses, head and bank of CMS, every method with its views "
    "and "
    "gradients that are not cut; snapshot and K chosen by HIDDEN labels, those of the official "
    "test "
    "part, or in the inductive setup of a tenth of the training part: no user has them, and the "
    "numbers cannot be compared with those of the protocol 'paper'",
}
"""Which labels choose. 'paper' leaves the recipe as it is; 'reference' follows the released code
where it differs."""

VALIDATION_SHARE = 0.2
INDUCTIVE_SHARE = 0.1
"""As published."""

DECIDED = {
    *("seed", "training.seed", "encoder", "input_size", "protocol", "validation_share"),
    *("method", "n_clusters", "selection"),
}
"""Names that a flag or the rows of a table decide, and not a change of settings."""


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """What a user may choose for all cells of a run."""

    encoder: str | None = None
    """None: the paper's for each table."""
    input_size: int | None = None
    changes: Mapping[str, object] = field(default_factory=dict)
    """Settings for every row, by dotted name; with a method's name in front, for that method alone,
    as in 'cms.loss.temperature'. A row's own changes come after them."""
    validation_share: float = VALIDATION_SHARE
    """Share of labeled and of unlabeled images set aside to choose snapshot and K; the inductive
    tables set a tenth aside."""
    protocol: str = "paper"
    """A name in `SELECTIONS`."""
    methods: tuple[str, ...] = ()
    """The methods whose rows are run, by name; none given: all of them."""

    def __post_init__(self) -> None:
        if self.protocol not in SELECTIONS:
            raise UnknownName("protocol", self.protocol, SELECTIONS)
        for name in self.methods:
            get_method(name)
        for name in self.changes:
            if plain_name(name) in DECIDED:
                raise UsageError(
                    f"--set {name}: a flag of its own or the rows of the table decide on it; "
                    "see shoal reproduce --help"
                )
        if self.input_size is not None and self.input_size < 1:
            raise UsageError(
                f"--input-size: found {self.input_size}, expected a number of pixels, 1 or more"
            )
        if not 0 < self.validation_share < 1:
            raise UsageError(
                f"--validation-share: found {self.validation_share}, "
                "expected a number between 0 and 1"
            )

    @property
    def suffix(self) -> str:
        """What names of files end in; nothing for the protocol that sees no hidden label."""
        if self.protocol == "paper":
            return ""
        return f"_{self.protocol}"

    def rows_to_run(self, experiment: Experiment) -> list[TableRow]:
        """The rows of a table that are not only quoted from the paper."""
        wanted = self.methods or METHODS
        return [row for row in experiment.rows if row.method in wanted]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One dataset, method, settings, seed and way of clustering; equal keys are the same work."""

    dataset: str
    method: str
    settings: MethodSettings
    clustering: str
    clustering_settings: MethodSettings
    """The settings of the method that clusters."""
    n_clusters: Number
    setup: Setup
    selection: Number
    figure: str | None
    """The figure whose material is gathered; None for a table."""
    validation_share: float
    """0 where none are set aside: the released code, transductive."""
    protocol: str

    @property
    def trained(self) -> TrainedSettings | None:
        """The settings of a method that trains; None for one that does not."""
        return self.settings if isinstance(self.settings, TrainedSettings) else None

    @property
    def seed(self) -> int | None:
        """The seed of the training; None where nothing is drawn."""
        return None if self.trained is None else self.trained.training.seed

    @property
    def sees_hidden_labels(self) -> bool:
        """Whether hidden labels choose the snapshot and K.

        Without any training or label there is nothing to choose.
        """
        has_choice = self.trained is not None and self.setup != "unsupervised"
        return has_choice and self.protocol == "reference"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the dataset that it needs."""
        if self.setup == "inductive" or self.sees_hidden_labels:
            return ("train", "test")
        return ("train",)

    @property
    def input_size(self) -> int | None:
        """Side of the images; None: what an encoder that is not in the catalog was made for."""
        encoder = ENCODERS.get(self.settings.encoder)
        if self.settings.input_size is None and encoder is not None:
            return encoder.input_format.size
        return self.settings.input_size

    @property
    def training(self) -> dict[str, object]:
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
    def identity(self) -> dict[str, object]:
        """Everything the result depends on besides images and code."""
        return self.training | {
            "clustering": self.clustering,
            "clustering_settings": to_dict(self.clustering_settings),
            "n_clusters": self.n_clusters,
            "figure": self.figure,
        }

    @cached_property
    def training_key(self) -> str:
        """A checksum of `training`."""
        return _digest(self.training)

    @cached_property
    def key(self) -> str:
        """The name of the cell's file: readable, then a checksum of its identity."""
        words = [self.dataset, self.method, self.clustering, self.n_clusters]
        if self.protocol != "paper":
            words.append(self.protocol)
        return "_".join([*words, _digest(self.identity)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """An experiment on some datasets with some seeds, and its cells."""

    experiment: Experiment
    options: ReproduceOptions
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    grid: Mapping[tuple[str, str], tuple[Cell, ...]]
    """(row, dataset) -> a cell per seed, one alone if nothing is drawn; no rows that are quoted."""

    @property
    def cells(self) -> list[Cell]:
        """All of them, dataset by dataset."""
        return [cell for cells in self.grid.values() for cell in cells]

    @property
    def encoder(self) -> str:
        """The encoder of our numbers."""
        return self.options.encoder or self.experiment.encoder


def check_used(experiments: Sequence[Experiment], options: ReproduceOptions) -> None:
    """Refuse a change or a share that no row of these tables has: it would have no effect."""
    shown = ", ".join(experiment.name for experiment in experiments)
    rows = [row for experiment in experiments for row in options.rows_to_run(experiment)]
    takes_share = options.protocol == "paper" and any(
        row.setup == "transductive" and get_method(row.methods[0]).trains for row in rows
    )
    if options.validation_share != VALIDATION_SHARE and not takes_share:
        raise UsageError(
            f"--validation-share: no row of what is run ({shown}) takes it: the inductive tables "
            "set a tenth aside, as published, the protocol 'reference' and rows without labels or "
            "training none; leave it out"
        )
    methods = {method for row in rows for method in row.methods}
    for name in options.changes:
        having = {method for method in METHODS if has_setting(method, name)}
        if having and not having & methods:
            raise UsageError(
                f"--set {name}: no row of what is run ({shown}) has this setting; leave it out"
            )


def make_plan(
    experiment: Experiment, datasets: Sequence[str], seeds: Sequence[int], options: ReproduceOptions
) -> Plan:
    """Build the cells of an experiment."""
    if not datasets or not seeds:
        raise UsageError(
            "reproduce: found no dataset or no seed; give --root DATASET=FOLDER and --seeds 0"
        )
    if len(set(seeds)) < len(seeds):
        raise UsageError(
            f"--seeds: found one more than once in {', '.join(map(str, seeds))}; "
            "the same seed is the same run, and no spread"
        )
    for seed in seeds:
        check_seed(seed)
    own = {name for row in experiment.rows for name in row.changes}
    for name in options.changes:
        if plain_name(name) in own:  # the names of the rows would no longer say what they are
            raise UsageError(
                f"--set {name}: Table {experiment.name} sets it row by row; leave it out, "
                "or run another table with it"
            )
    grid = {}
    for dataset in datasets:
        for row in options.rows_to_run(experiment):
            # Nothing is drawn on frozen features.
            drawn = seeds if get_method(row.methods[0]).trains else (0,)
            grid[row.name, dataset] = tuple(
                make_cell(experiment, row, dataset, seed, options) for seed in drawn
            )
    return Plan(
        experiment=experiment,
        options=options,
        datasets=tuple(datasets),
        seeds=tuple(seeds),
        grid=grid,
    )


def make_cell(
    experiment: Experiment, row: TableRow, dataset: str, seed: int, options: ReproduceOptions
) -> Cell:
    """The cell of a row, a dataset and a seed."""
    learns, clusters = row.methods
    encoder = options.encoder or experiment.encoder
    settings = _settings(learns, row, dataset, encoder, options)
    clustering_settings = _settings(clusters, row, dataset, encoder, options)
    if not get_method(learns).trains:
        seed = 0
    selection = row.selection
    method = get_method(learns)
    if method.needs_n_clusters or method.uses_n_clusters:
        selection = row.n_clusters  # it trains with K where that is given
    share = 0.0
    if row.setup == "inductive":
        share = INDUCTIVE_SHARE
    elif options.protocol == "paper":
        share = options.validation_share
    return Cell(
        dataset=dataset,
        method=learns,
        settings=settings.with_seed(seed),
        clustering=row.clustering or learns,
        clustering_settings=clustering_settings.with_seed(seed),
        n_clusters=row.n_clusters,
        setup=row.setup,
        selection=selection,
        figure=experiment.measure if experiment.measure in FIGURES else None,
        validation_share=share,
        protocol=options.protocol,
    )


def _settings(
    method: str, row: TableRow, dataset: str, encoder: str, options: ReproduceOptions
) -> MethodSettings:
    """The recipe, then the protocol, then what the user chose, then what makes the row."""
    settings: MethodSettings = load_recipe(recipe_for(dataset, encoder, method), method)
    if options.protocol == "reference":
        settings = follow_protocol(settings, "reference", method)
    settings = with_encoder(settings, encoder)
    where = f"{method} on {dataset}"
    chosen = {"input_size": options.input_size, **options.changes, **row.changes}
    settings = change_settings(settings, method, chosen, where=where)
    if row.weighs_alike:
        k = settings.inference.shift.n_neighbors
        settings = change_settings(settings, method, {"inference.shift.alpha": k / (k + 1)})
    return settings


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
