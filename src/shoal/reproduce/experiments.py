"""Every table and figure of the paper's experiments, as data: rows × datasets.

Rows without a method are quoted from the paper only. Mean shifts (IMS, Algorithm 1) on frozen
features are rows of ours, which the paper does not have: they cost nothing beside the frozen
features, and say what of a result is the training's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shoal.errors import UnknownName
from shoal.methods.registry import METHODS, get_method
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


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of a table; without a method it is only quoted from the paper."""

    name: str
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

    @property
    def takes_share(self) -> bool:
        """Whether images are set aside as the user says."""
        if self.method is None or self.setup != "transductive":
            return False
        return get_method(self.method).trains


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
                name=name,
                method=by_title.get(title),
                n_clusters=n_clusters or number,
                setup=setup,
            )
        )
    return tuple(rows)


MAIN = (
    *_rows("Agglomerative, K given"),
    TableRow(name="Agglomerative + IMS, K given", method="agglomerative", clustering="cms"),
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
        name="Agglomerative + IMS, K estimated",
        method="agglomerative",
        clustering="cms",
        n_clusters="estimated",
    ),
    *_rows("GCD, K estimated", "GPC, K estimated", "PIM, K estimated", "CMS, K estimated"),
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(name="1", title="Main results", measure="accuracy", datasets=SIX, rows=MAIN),
        Experiment(
            name="2",
            title="Inductive: accuracy on the unseen test part",
            measure="accuracy",
            datasets=SIX,
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
            name="3",
            title="Estimated number of classes (CMS*: snapshot chosen with K given)",
            measure="n_clusters",
            datasets=SIX,
            rows=(
                *_rows("GCD", "DCCL", "PIM", "GPC", "CMS", n_clusters="estimated"),
                TableRow(name="CMS*", n_clusters="estimated", selection="given"),
            ),
        ),
        Experiment(
            name="4",
            title="Components: CMS in training, SSK or mean shifts (IMS) in inference",
            measure="accuracy",
            datasets=FOUR,
            rows=(
                TableRow(name="(0) frozen, IMS", method="agglomerative", clustering="cms"),
                TableRow(name="(1) SSK", method="gcd"),
                TableRow(name="(2) IMS", method="gcd", clustering="cms"),
                TableRow(name="(3) CMS, SSK", clustering="gcd"),
                TableRow(name="(4) CMS, 1-step", clustering=ONE_STEP),
                TableRow(name="(5) CMS, IMS"),
            ),
        ),
        Experiment(
            name="5",
            title="Kernels",
            measure="accuracy",
            datasets=SIX,
            rows=(
                TableRow(name="Uniform", changes={"inference.shift.kernel": "uniform", **IMAGES}),
                TableRow(name="Gaussian", changes={"inference.shift.kernel": "gaussian", **IMAGES}),
                TableRow(name="kNN"),
            ),
        ),
        Experiment(
            name="6",
            title="Aggregation of neighbors",
            measure="accuracy",
            datasets=TWO,
            rows=(
                TableRow(
                    name="kNN, attention", changes={"inference.shift.aggregation": "attention"}
                ),
                TableRow(
                    name="random, mean", changes={"inference.shift.retrieval": "random", **IMAGES}
                ),
                TableRow(name="kNN, mean"),
            ),
        ),
        Experiment(
            name="7",
            title="Without any label (accuracy on all images)",
            measure="all",
            datasets=THREE,
            rows=(
                TableRow(name="GCD", method="gcd", setup="unsupervised"),
                TableRow(name="CMS", setup="unsupervised"),
            ),
        ),
        Experiment(
            name="8",
            title="Recall@8 of the embeddings of CMS",
            measure="recall",
            datasets=THREE,
            rows=(TableRow(name="Unsupervised", setup="unsupervised"), TableRow(name="GCD setup")),
        ),
        Experiment(
            name="9",
            title="Number of known and novel classes",
            measure="classes",
            datasets=SIX,
            rows=(TableRow(name="Classes", method=None),),
        ),
        Experiment(
            name="10",
            title="Size of the collection in which neighbors are searched",
            measure="images",
            datasets=SIX,
            rows=(TableRow(name="Images", method=None),),
        ),
        Experiment(
            name="11",
            title="Embedding in the supervised loss",
            measure="accuracy",
            datasets=FOUR,
            rows=(
                TableRow(name="z", changes={"loss.supervised_input": "shifted"}),
                TableRow(name="v"),
            ),
        ),
        Experiment(
            name="12",
            title="Number of neighbors k",
            measure="accuracy",
            datasets=FOUR,
            rows=tuple(
                TableRow(name=str(k), changes={"inference.shift.n_neighbors": k})
                for k in (4, 8, 16, 32, 64)
            ),
        ),
        Experiment(
            name="13",
            title="Scale α (1/(k+1): query and neighbors weigh alike, α = k/(k+1))",
            measure="accuracy",
            datasets=TWO,
            rows=(
                *(
                    TableRow(name=str(alpha), changes={"inference.shift.alpha": alpha})
                    for alpha in (0.5, 0.6, 0.7, 0.8)
                ),
                TableRow(name="1/(k+1)", weighs_alike=True),
            ),
        ),
        Experiment(
            name="14",
            title="Share λ of the supervised loss",
            measure="accuracy",
            datasets=TWO,
            rows=tuple(
                TableRow(name=str(weight), changes={"loss.supervised_weight": weight})
                for weight in (0.25, 0.35, 0.5)
            ),
        ),
        Experiment(
            name="15",
            title="Main results with CLIP",
            measure="accuracy",
            datasets=SIX,
            encoder=CLIP,
            rows=_rows("GCD, K given", "PromptCAL, K given", "CMS, K given", "CMS, K estimated"),
        ),
        Experiment(
            name="16",
            title="Inductive with CLIP",
            measure="accuracy",
            datasets=SIX,
            encoder=CLIP,
            rows=_rows("PromptCAL, K given", "CMS, K given", "CMS, K estimated", setup="inductive"),
        ),
        Experiment(
            name="17",
            title="Estimated number of classes with CLIP",
            measure="n_clusters",
            datasets=SIX,
            encoder=CLIP,
            rows=(TableRow(name="CMS", n_clusters="estimated"),),
        ),
        Experiment(
            name="iterations",
            title="Accuracy over mean-shift iterations",
            measure="iterations",
            datasets=("cub",),
            rows=(TableRow(name="CMS"),),
        ),
        Experiment(
            name="retrieval",
            title="Neighbors retrieved by the embedding and by the shifted one",
            measure="retrieval",
            datasets=("cub",),
            rows=(TableRow(name="CMS"),),
        ),
        Experiment(
            name="tsne",
            title="t-SNE of the embeddings before and after training",
            measure="tsne",
            datasets=("imagenet100",),
            rows=(TableRow(name="frozen encoder", method="agglomerative"), TableRow(name="CMS")),
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
