"""Every table and figure of the paper's experiments, as data: rows × datasets.

Rows without a method are quoted from the paper only. Mean shifts (IMS, Algorithm 1) on frozen
features are rows of ours, which the paper does not have: they cost nothing beside the frozen
features, and say what of a result is the training's.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from shoal.errors import UnknownName
from shoal.methods.registry import METHODS
from shoal.reproduce.paper import CLIP, FOUR, SIX

Setup = Literal["transductive", "inductive", "unsupervised"]
"""'transductive': all of the training part is clustered. 'inductive': the official test part, never
trained on. 'unsupervised': as transductive, without any label."""

Number = Literal["given", "estimated"]
"""Whether K is given."""

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
"""What a table shows: All / Known / Novel, All alone, K and its error, Recall@8; what is counted in
a dataset; or what a figure draws."""

COUNTS = ("classes", "images")
"""What is counted in the datasets, without any method."""

FIGURES = ("iterations", "retrieval", "tsne")
"""What is drawn rather than tabulated."""

ONE_STEP = "one-step"
"""A clustering that is no method's: one shift, then Ward."""

THREE = SIX[:3]
TWO = SIX[1:3]
IMAGES = {"bank": "images"}
"""For rows that the released code's bank of views cannot do; it has none of them itself."""


@dataclass(frozen=True)
class TableRow:
    """A row of a table; without a method it is only quoted from the paper."""

    name: str
    _: KW_ONLY
    method: str | None = "cms"
    clustering: str | None = None
    """The method that clusters the embeddings, or `ONE_STEP`. None: the method's own."""
    changes: Mapping[str, str | float] = field(default_factory=dict)
    """Settings that differ from the recipe, by dotted name."""
    weighs_alike: bool = False
    """Whether α is such that a query weighs as much as each of its k neighbors."""
    n_clusters: Number = "given"
    setup: Setup = "transductive"
    selection: Number = "estimated"
    """Whether the snapshot is chosen with K estimated, or (CMS* of Table 3) given."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods whose settings it has: the one that learns, and the one that clusters."""
        if self.method is None:
            return ()
        if self.clustering == ONE_STEP:
            return (self.method, "cms")
        return (self.method, self.clustering or self.method)


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str
    title: str
    measure: Measure
    datasets: tuple[str, ...]
    rows: tuple[TableRow, ...]
    encoder: str = "dino-vitb16"
    """The paper's."""


def _rows(
    *names: str, n_clusters: Number | None = None, setup: Setup = "transductive"
) -> tuple[TableRow, ...]:
    """Rows named after a method, 'GCD, K given'; one that Shoal does not have is quoted only."""
    by_title = {method.title: name for name, method in METHODS.items()}
    rows = []
    for name in names:
        title, _, given = name.partition(", K ")
        number: Number = "estimated" if given == "estimated" else "given"
        rows.append(
            TableRow(
                name,
                method=by_title.get(title),
                n_clusters=n_clusters or number,
                setup=setup,
            )
        )
    return tuple(rows)


MAIN = (
    *_rows("Agglomerative, K given"),
    TableRow("Agglomerative + IMS, K given", method="agglomerative", clustering="cms"),
    *_rows(
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
    ),
    TableRow(
        "Agglomerative + IMS, K estimated",
        method="agglomerative",
        clustering="cms",
        n_clusters="estimated",
    ),
    *_rows("GCD, K estimated", "GPC, K estimated", "PIM, K estimated", "CMS, K estimated"),
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("1", "Main results", "accuracy", SIX, rows=MAIN),
        Experiment(
            "2",
            "Inductive: accuracy on the unseen test part",
            "accuracy",
            SIX,
            rows=_rows(
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
            "n_clusters",
            SIX,
            rows=(
                *_rows("GCD", "DCCL", "PIM", "GPC", "CMS", n_clusters="estimated"),
                TableRow("CMS*", n_clusters="estimated", selection="given"),
            ),
        ),
        Experiment(
            "4",
            "Components: CMS in training, SSK or mean shifts (IMS) in inference",
            "accuracy",
            FOUR,
            rows=(
                TableRow("(0) frozen, IMS", method="agglomerative", clustering="cms"),
                TableRow("(1) SSK", method="gcd"),
                TableRow("(2) IMS", method="gcd", clustering="cms"),
                TableRow("(3) CMS, SSK", clustering="gcd"),
                TableRow("(4) CMS, 1-step", clustering=ONE_STEP),
                TableRow("(5) CMS, IMS"),
            ),
        ),
        Experiment(
            "5",
            "Kernels",
            "accuracy",
            SIX,
            rows=(
                TableRow("Uniform", changes={"inference.shift.kernel": "uniform", **IMAGES}),
                TableRow("Gaussian", changes={"inference.shift.kernel": "gaussian", **IMAGES}),
                TableRow("kNN"),
            ),
        ),
        Experiment(
            "6",
            "Aggregation of neighbors",
            "accuracy",
            TWO,
            rows=(
                TableRow("kNN, attention", changes={"inference.shift.aggregation": "attention"}),
                TableRow("random, mean", changes={"inference.shift.retrieval": "random", **IMAGES}),
                TableRow("kNN, mean"),
            ),
        ),
        Experiment(
            "7",
            "Without any label (accuracy on all images)",
            "all",
            THREE,
            rows=(
                TableRow("GCD", method="gcd", setup="unsupervised"),
                TableRow("CMS", setup="unsupervised"),
            ),
        ),
        Experiment(
            "8",
            "Recall@8 of the embeddings of CMS",
            "recall",
            THREE,
            rows=(TableRow("Unsupervised", setup="unsupervised"), TableRow("GCD setup")),
        ),
        Experiment(
            "9",
            "Number of known and novel classes",
            "classes",
            SIX,
            rows=(TableRow("Classes", method=None),),
        ),
        Experiment(
            "10",
            "Size of the collection in which neighbors are searched",
            "images",
            SIX,
            rows=(TableRow("Images", method=None),),
        ),
        Experiment(
            "11",
            "Embedding in the supervised loss",
            "accuracy",
            FOUR,
            rows=(
                TableRow("z", changes={"loss.supervised_input": "shifted"}),
                TableRow("v"),
            ),
        ),
        Experiment(
            "12",
            "Number of neighbors k",
            "accuracy",
            FOUR,
            rows=tuple(
                TableRow(str(k), changes={"inference.shift.n_neighbors": k})
                for k in (4, 8, 16, 32, 64)
            ),
        ),
        Experiment(
            "13",
            "Scale α (1/(k+1): query and neighbors weigh alike, α = k/(k+1))",
            "accuracy",
            TWO,
            rows=(
                *(
                    TableRow(str(alpha), changes={"inference.shift.alpha": alpha})
                    for alpha in (0.5, 0.6, 0.7, 0.8)
                ),
                TableRow("1/(k+1)", weighs_alike=True),
            ),
        ),
        Experiment(
            "14",
            "Share λ of the supervised loss",
            "accuracy",
            TWO,
            rows=tuple(
                TableRow(str(weight), changes={"loss.supervised_weight": weight})
                for weight in (0.25, 0.35, 0.5)
            ),
        ),
        Experiment(
            "15",
            "Main results with CLIP",
            "accuracy",
            SIX,
            encoder=CLIP,
            rows=_rows("GCD, K given", "PromptCAL, K given", "CMS, K given", "CMS, K estimated"),
        ),
        Experiment(
            "16",
            "Inductive with CLIP",
            "accuracy",
            SIX,
            encoder=CLIP,
            rows=_rows("PromptCAL, K given", "CMS, K given", "CMS, K estimated", setup="inductive"),
        ),
        Experiment(
            "17",
            "Estimated number of classes with CLIP",
            "n_clusters",
            SIX,
            encoder=CLIP,
            rows=(TableRow("CMS", n_clusters="estimated"),),
        ),
        Experiment(
            "iterations",
            "Accuracy over mean-shift iterations",
            "iterations",
            ("cub",),
            rows=(TableRow("CMS"),),
        ),
        Experiment(
            "retrieval",
            "Neighbors retrieved by the embedding and by the shifted one",
            "retrieval",
            ("cub",),
            rows=(TableRow("CMS"),),
        ),
        Experiment(
            "tsne",
            "t-SNE of the embeddings before and after training",
            "tsne",
            ("imagenet100",),
            rows=(TableRow("frozen encoder", method="agglomerative"), TableRow("CMS")),
        ),
    )
}
"""By the number of the table in the paper, or the name of the figure."""


def get_experiment(name: str) -> Experiment:
    """Look a table ('1' … '17', 'table1') or figure up by its name."""
    short = name.lower().removeprefix("table").removeprefix("figure").strip(" -_")
    if short not in EXPERIMENTS:
        raise UnknownName("table or figure", name, EXPERIMENTS)
    return EXPERIMENTS[short]
