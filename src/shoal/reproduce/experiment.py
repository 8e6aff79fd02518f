"""An experiment: a table or figure of the paper as rows × datasets, and what a user may choose for all of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.errors import UnknownName, UsageError
from shoal.methods.registry import METHODS, get_method
from shoal.methods.setting_changes import has_setting, plain_name

Setup = Literal["transductive", "inductive", "unsupervised"]
"""'transductive': all of the training part is clustered. 'inductive': the official test part, never trained on.
'unsupervised': as transductive, without any label."""

Measure = Literal[
    "accuracy",
    "all",
    "n_clusters",
    "recall",
    "classes",
    "images",
    "iterations",
    "retrieval",
    "tsne",
]
"""What a table shows: All / Known / Novel, All alone, K and its error, Recall@8; what is counted in a dataset; or what
a figure draws."""

COUNTS = ("classes", "images")
"""What is counted in the datasets, without any method."""

FIGURES = ("iterations", "retrieval", "tsne")
"""What is drawn rather than tabulated."""

ONE_STEP = "one-step"
"""A clustering that is no method's: one shift, then Ward."""

SELECTIONS = {
    "paper": "snapshot, K and shifts chosen by given labels only",
    "reference": "snapshot and K chosen by HIDDEN labels, those of the official test part, or in the inductive setup "
    "of a tenth of the training part: no user has them, and the numbers cannot be compared with those of the protocol "
    "'paper'",
}
"""Which labels choose. 'paper' leaves the recipe as it is; 'reference' follows the released code where it differs."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of a table; without a method it is only quoted from the paper."""

    name: str
    method: str | None = "cms"
    clustering: str | None = None
    """The method that clusters the embeddings, or `ONE_STEP`. None: the method's own."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the recipe, by dotted name."""
    derived: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Settings computed from all others, by dotted name, where what a row is called says so."""
    n_clusters: Literal["given", "estimated"] = "given"
    setup: Setup = "transductive"
    selection: Literal["estimated", "given"] = "estimated"
    """Whether the snapshot is chosen with K estimated, or (CMS* of Table 3) given."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods whose settings it has: the one that learns, and the one that clusters."""
        clustering = "cms" if self.clustering == ONE_STEP else self.clustering
        return () if self.method is None else (self.method, clustering or self.method)

    @property
    def takes_share(self) -> bool:
        """Whether images are set aside as the user says."""
        return (
            self.method is not None
            and get_method(self.method).trains
            and self.setup == "transductive"
        )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure."""

    name: str
    title: str
    measure: Measure
    datasets: tuple[str, ...]
    rows: tuple[TableRow, ...]
    encoder: str = "dino-vitb16"
    """The paper's."""


VALIDATION_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """What a user may choose for all cells of a run."""

    encoder: str | None = None
    """None: the paper's for each table."""
    input_size: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings for every row, by dotted name; with a method's name in front, for that method alone, as in
    'cms.loss.temperature'. A row's own changes come after them."""
    validation_share: float = VALIDATION_SHARE
    """Share of labeled and of unlabeled images set aside to choose snapshot and K; inductive: 0.1, as published."""
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
            if plain_name(name) in OWNED:
                raise UsageError(
                    f"--set {name}: not a setting to change here; {OWNED[plain_name(name)]}"
                )
        if self.input_size is not None and self.input_size < 1:
            raise UsageError(
                f"--input-size: found {self.input_size}, expected a number of pixels, 1 or more"
            )
        if not 0 < self.validation_share < 1:
            raise UsageError(
                f"validation_share: found {self.validation_share}, expected a number between 0 and 1"
            )


OWNED = {
    "seed": "the seeds of a table are given by --seeds",
    "training.seed": "the seeds of a table are given by --seeds",
    "encoder": "the encoder of a table is given by --encoder",
    "input_size": "the size of the images is given by --input-size",
    "protocol": "the protocol of a table is given by --protocol",
    "validation_share": "the share set aside is given by --validation-share",
    "method": "the rows of a table say which method they are of",
    "n_clusters": "the rows of a table say whether K is given or estimated",
    "selection": "the rows of a table say how the snapshot is chosen",
}
"""Names that a table or a flag of its own decides, and not a change of settings."""


def rows_to_run(experiment: Experiment, options: ReproduceOptions) -> list[TableRow]:
    """The rows of a table that are not only quoted from the paper."""
    wanted = options.methods or METHODS
    return [row for row in experiment.rows if row.method in wanted]


def check_used(experiments: Iterable[Experiment], options: ReproduceOptions) -> None:
    """Refuse a change or a share that no row of these tables has; it would be passed over by all of them."""
    tables = list(experiments)
    shown = ", ".join(experiment.name for experiment in tables)
    rows = [row for experiment in tables for row in rows_to_run(experiment, options)]
    takes_share = options.protocol == "paper" and any(row.takes_share for row in rows)
    if options.validation_share != VALIDATION_SHARE and not takes_share:
        raise UsageError(
            f"--validation-share: no row of what is run ({shown}) takes it: the inductive tables set a tenth aside, as "
            "published, the protocol 'reference' and rows without labels or training none; leave it out"
        )
    methods = {method for row in rows for method in row.methods}
    for name in options.changes:
        if not any(has_setting(method, name) for method in methods) and any(
            has_setting(m, name) for m in METHODS
        ):
            raise UsageError(
                f"--set {name}: no row of what is run ({shown}) has this setting; leave it out"
            )
