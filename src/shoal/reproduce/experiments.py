"""Every table of the paper's experiments, as data: rows × datasets.

The rows with mean shifts (IMS, Algorithm 1)
on frozen features are not in the paper: they show how much of a result is due to training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal

from shoal.errors import UnknownName
from shoal.methods.registry import METHODS
from shoal.reproduce.paper import CLIP, FOUR, SIX

# 'transductive': the training part is clustered. 'inductive': the official test part, which is
# never trained on. 'unsupervised': the training part, without any labels.
Setup = Literal["transductive", "inductive", "unsupervised"]

KSource = Literal["given", "estimated"]

# The numbers of a table: All / Known / Novel accuracy, All alone, K and its error, or Recall@8
Measure = Literal["accuracy", "all", "n_clusters", "recall"]

# Clusterings that are not part of a method: a fixed number of shifts, then Ward's tree
FIXED_SHIFTS = {f"shifts-{n}": n for n in range(9)}

THREE = SIX[:3]
TWO = SIX[1:3]

# For rows that the bank of views of the released code does not support
IMAGES = {"bank": "images"}


@dataclass(frozen=True)
class TableRow:
    """A row of a table."""

    name: str
    _: KW_ONLY
    method: str = "cms"
    clustering: str | None = None
    """The method that clusters, or a name in `FIXED_SHIFTS`; None: the same method."""
    changes: Mapping[str, str | float] = field(default_factory=dict)
    """Settings that differ from the recipe, by dotted name."""
    n_clusters: KSource = "given"
    setup: Setup = "transductive"
    selection: KSource = "estimated"
    """Whether the snapshot is chosen at the estimated K or (CMS* of Table 3) at the given one."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The method that learns the embeddings, and the one that clusters them."""
        if self.clustering in FIXED_SHIFTS:
            return (self.method, "cms")
        return (self.method, self.clustering or self.method)


@dataclass(frozen=True)
class Experiment:
    """A table of the paper."""

    name: str
    title: str
    datasets: tuple[str, ...]
    rows: tuple[TableRow, ...]
    measure: Measure = "accuracy"
    encoder: str = "dino-vitb16"
    """The encoder of the paper's numbers."""


def _rows(
    *names: str, n_clusters: KSource = "given", setup: Setup = "transductive"
) -> tuple[TableRow, ...]:
    """Return rows named after a method, such as 'GCD, K given' or 'CMS, K estimated', with mean
    shifts in inference after '+ IMS'."""
    by_title = {method.title: name for name, method in METHODS.items()}
    rows = []
    for name in names:
        source: KSource = "estimated" if name.endswith("K estimated") else n_clusters
        title, shifts, _ = name.partition(",")[0].partition(" + IMS")
        clustering = "cms" if shifts else None
        rows.append(
            TableRow(
                name, method=by_title[title], clustering=clustering, n_clusters=source, setup=setup
            )
        )
    return tuple(rows)


def _varied(setting: str, *values: float) -> tuple[TableRow, ...]:
    """Return rows that differ in one setting, named after its value."""
    return tuple(TableRow(str(value), changes={setting: value}) for value in values)


MAIN = _rows(
    "Agglomerative, K given",
    "Agglomerative + IMS, K given",
    "RankStats+, K given",
    "UNO+, K given",
    "ORCA, K given",
    "GCD, K given",
    "DCCL, K given",
    "PromptCAL, K given",
    "GPC, K given",
    "SimGCD, K given",
    "PIM, K given",
    "CMS, K given",
    "Agglomerative, K estimated",
    "Agglomerative + IMS, K estimated",
    "GCD, K estimated",
    "GPC, K estimated",
    "PIM, K estimated",
    "CMS, K estimated",
)

# By the number of the table in the paper; 'iterations' is a figure there. Tables 9 and 10 only
# count classes and images, as `shoal datasets verify` does.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("1", "Main results", SIX, MAIN),
        Experiment(
            "2",
            "Inductive: accuracy on the unseen test part",
            SIX,
            _rows(
                "GCD, K given",
                "ORCA, K given",
                "PromptCAL, K given",
                "CMS, K given",
                "CMS, K estimated",
                setup="inductive",
            ),
        ),
        Experiment(
            "3",
            "Estimated number of classes (CMS*: snapshot chosen with K given)",
            SIX,
            (
                *_rows("GCD", "DCCL", "PIM", "GPC", "CMS", n_clusters="estimated"),
                TableRow("CMS*", n_clusters="estimated", selection="given"),
            ),
            measure="n_clusters",
        ),
        Experiment(
            "4",
            "Components: CMS in training, SSK or mean shifts (IMS) in inference",
            FOUR,
            (
                TableRow("(0) frozen, IMS", method="agglomerative", clustering="cms"),
                TableRow("(1) SSK", method="gcd"),
                TableRow("(2) IMS", method="gcd", clustering="cms"),
                TableRow("(3) CMS, SSK", clustering="gcd"),
                TableRow("(4) CMS, 1-step", clustering="shifts-1"),
                TableRow("(5) CMS, IMS"),
            ),
        ),
        Experiment(
            "5",
            "Kernels",
            SIX,
            (
                TableRow("Uniform", changes={"inference.shift.kernel": "uniform", **IMAGES}),
                TableRow("Gaussian", changes={"inference.shift.kernel": "gaussian", **IMAGES}),
                TableRow("kNN"),
            ),
        ),
        Experiment(
            "6",
            "Aggregation of neighbors",
            TWO,
            (
                TableRow("kNN, attention", changes={"inference.shift.aggregation": "attention"}),
                TableRow("random, mean", changes={"inference.shift.retrieval": "random", **IMAGES}),
                TableRow("kNN, mean"),
            ),
        ),
        Experiment(
            "7",
            "Without any label (accuracy on all images)",
            THREE,
            (
                TableRow("GCD", method="gcd", setup="unsupervised"),
                TableRow("CMS", setup="unsupervised"),
            ),
            measure="all",
        ),
        Experiment(
            "8",
            "Recall@8 of the embeddings of CMS",
            THREE,
            (TableRow("Unsupervised", setup="unsupervised"), TableRow("GCD setup")),
            measure="recall",
        ),
        Experiment(
            "11",
            "Embedding in the supervised loss",
            FOUR,
            (
                TableRow("z", changes={"loss.supervised_input": "shifted"}),
                TableRow("v"),
            ),
        ),
        Experiment(
            "12",
            "Number of neighbors k",
            FOUR,
            _varied("inference.shift.n_neighbors", 4, 8, 16, 32, 64),
        ),
        Experiment(
            "13",
            "Scale α (1/(k+1): equal weights of query and neighbors, α = k/(k+1))",
            TWO,
            (
                *_varied("inference.shift.alpha", 0.5, 0.6, 0.7, 0.8),
                TableRow(
                    "1/(k+1)",
                    changes={"inference.shift.n_neighbors": 8, "inference.shift.alpha": 8 / 9},
                ),
            ),
        ),
        Experiment(
            "14",
            "Share λ of the supervised loss",
            TWO,
            _varied("loss.supervised_weight", 0.25, 0.35, 0.5),
        ),
        Experiment(
            "15",
            "Main results with CLIP",
            SIX,
            _rows("GCD, K given", "PromptCAL, K given", "CMS, K given", "CMS, K estimated"),
            encoder=CLIP,
        ),
        Experiment(
            "16",
            "Inductive with CLIP",
            SIX,
            _rows("PromptCAL, K given", "CMS, K given", "CMS, K estimated", setup="inductive"),
            encoder=CLIP,
        ),
        Experiment(
            "17",
            "Estimated number of classes with CLIP",
            SIX,
            (TableRow("CMS", n_clusters="estimated"),),
            measure="n_clusters",
            encoder=CLIP,
        ),
        Experiment(
            "iterations",
            "Accuracy over mean-shift iterations",
            ("cub",),
            tuple(TableRow(name, clustering=name) for name in FIXED_SHIFTS),
        ),
    )
}


def get_experiment(name: str, methods: Sequence[str] = ()) -> Experiment:
    """Return a table by its name, a number or 'iterations'.

    A table of methods with K given has a row, without numbers of the paper, for each of `methods`
    that the paper does not have there.
    """
    if name not in EXPERIMENTS:
        raise UnknownName("table", name, EXPERIMENTS)
    experiment = EXPERIMENTS[name]
    rows = experiment.rows
    given = [row for row in rows if row.name.endswith(", K given")]
    known = {row.method for row in given}
    new = [METHODS[method].title for method in dict.fromkeys(methods) if method not in known]
    if not given or not new:
        return experiment
    end = rows.index(given[-1]) + 1
    added = _rows(*(f"{title}, K given" for title in new), setup=given[0].setup)
    return replace(experiment, rows=(*rows[:end], *added, *rows[end:]))
