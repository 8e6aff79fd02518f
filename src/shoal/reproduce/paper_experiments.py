"""Every table and figure of the paper's experiments, as data. Rows without a method are quoted from the paper only.

Mean shifts (IMS, Algorithm 1) on frozen features are rows of ours, which the paper does not have: they cost nothing
beside the frozen features, and say what of a result is the training's.
"""

from typing import Any

from shoal.errors import UnknownName
from shoal.methods.registry import METHODS
from shoal.reproduce.experiment import ONE_STEP, Experiment, TableRow
from shoal.reproduce.paper import CLIP, FOUR, SIX

THREE = ("cifar100", "imagenet100", "cub")
TWO = ("imagenet100", "cub")
IMAGES = {"bank": "images"}
"""For rows that the released code's bank of views cannot do; it has none of them itself."""


def _rows(*names: str, **how: Any) -> tuple[TableRow, ...]:
    """Rows named after a method, 'GCD, K given'; one that shoal does not have is quoted from the paper."""
    by_title = {method.title: name for name, method in METHODS.items()}
    return tuple(
        TableRow(name=name, method=by_title.get(name.partition(",")[0]), **how) for name in names
    )


def _inductive(*names: str) -> tuple[TableRow, ...]:
    return (
        *_rows(*names, "CMS, K given", setup="inductive"),
        *_rows("CMS, K estimated", setup="inductive", n_clusters="estimated"),
    )


def _weigh_alike(settings: Any) -> float:
    """The α with which a query weighs as much as each of its k neighbors."""
    k: int = settings.inference.shift.n_neighbors
    return k / (k + 1)


MAIN = (
    *_rows("Agglomerative, K given"),
    TableRow(name="Agglomerative + IMS, K given", method="agglomerative", clustering="cms"),
    *_rows(
        "RankStats+, K given", "UNO+, K given", "ORCA, K given", "GCD, K given", "DCCL, K given"
    ),
    *_rows("PromptCAL, K given", "GPC, K given", "SimGCD, K given", "PIM, K given", "CMS, K given"),
    *_rows("Agglomerative, K estimated", n_clusters="estimated"),
    TableRow(
        name="Agglomerative + IMS, K estimated",
        method="agglomerative",
        clustering="cms",
        n_clusters="estimated",
    ),
    *_rows(
        "GCD, K estimated",
        "GPC, K estimated",
        "PIM, K estimated",
        "CMS, K estimated",
        n_clusters="estimated",
    ),
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
            rows=_inductive("GCD, K given", "ORCA, K given", "PromptCAL, K given"),
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
                TableRow(name="1/(k+1)", derived={"inference.shift.alpha": _weigh_alike}),
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
            rows=(
                *_rows("GCD, K given", "PromptCAL, K given", "CMS, K given"),
                *_rows("CMS, K estimated", n_clusters="estimated"),
            ),
        ),
        Experiment(
            name="16",
            title="Inductive with CLIP",
            measure="accuracy",
            datasets=SIX,
            encoder=CLIP,
            rows=_inductive("PromptCAL, K given"),
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
