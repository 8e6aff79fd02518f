"""`shoal embed` writes the embeddings of images to a file, `shoal cluster` discovers the categories
of embeddings."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.console import (
    AllowMissing,
    Boxes,
    Device,
    Force,
    ForceFile,
    InputSize,
    Json,
    LabelColumn,
    Labels,
    Margin,
    MinConfidence,
    NClusters,
    PathColumn,
    Protocol,
    WholeImages,
    command_line,
    log,
    log_skipped,
    reporter,
    result,
)

if TYPE_CHECKING:
    from shoal.discovery.results import ClusterSettings


def cluster(
    embeddings: Annotated[
        Path, typer.Argument(help="npy, npz or parquet file with a row per image.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Table of paths and labels, or npy of labels in row order; by default, those in "
            "the file of embeddings are used."
        ),
    ] = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_missing: AllowMissing = False,
    n_clusters: NClusters = None,
    n_neighbors: Annotated[int, typer.Option(help="Number of neighbors of a mean shift.")] = 8,
    alpha: Annotated[
        float, typer.Option(help="Step of a mean shift, 0 to 1: the weight of the neighbors' mean.")
    ] = 0.5,
    rule: Annotated[
        str | None,
        typer.Option(help="Rule that estimates the number of categories: pairs or paper."),
    ] = None,
    protocol: Protocol = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder to write; by default runs/<name of the file>.")
    ] = None,
    device: Device = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Discover the categories of embeddings, e.g. `shoal cluster features.npz --labels labels.csv`.

    An npz file has X (N, D) and optionally y (labels) and paths. Unlabeled rows have the label -1,
    NaN, 'unlabeled', 'unknown' or an empty one.
    """
    from shoal.data.readers import label_embeddings, read_embeddings
    from shoal.discovery.results import cluster_embeddings
    from shoal.report.summary import doubt_estimate, summarize_run

    if labels is None:
        points = read_embeddings(embeddings, path_column=path_column, label_column=label_column)
    else:
        points = label_embeddings(
            read_embeddings(embeddings),
            labels,
            path_column=path_column,
            label_column=label_column,
            allow_missing=allow_missing,
        )
    log(points.describe())
    settings = _settings(n_clusters, n_neighbors, alpha, rule, protocol)
    run = cluster_embeddings(
        points,
        out or Path("runs") / embeddings.stem,
        settings,
        device=device,
        force=force,
        command=command_line(),
        reporter=reporter(),
    )
    estimate = run.json("estimate")
    words = summarize_run(run)
    facts = {
        "run": str(run.path),
        "n_clusters": run.n_clusters,
        "interval": estimate["interval"],
        "range": estimate["range"],
        "doubt": doubt_estimate(run),
        "summary": words,
    }
    result(f"{words}\n{run.path}", facts, as_json=json)
    log(f"next: shoal report {shlex.quote(str(run.path))}")


def _settings(
    n_clusters: str | None, n_neighbors: int, alpha: float, rule: str | None, protocol: str | None
) -> "ClusterSettings":
    from shoal.clustering.inference import InferenceSettings
    from shoal.clustering.mean_shift import ShiftSettings
    from shoal.clustering.n_clusters import read_n_clusters
    from shoal.discovery.results import ClusterSettings
    from shoal.methods.registry import get_protocol

    defaults: Mapping[str, Any] = get_protocol(protocol or "shoal")
    chosen_rule: Any = rule or defaults["inference.rule"]
    number, limits = read_n_clusters(n_clusters)
    min_clusters, max_clusters = limits or (None, None)
    has_extensions = protocol in (None, "shoal")  # of Shoal, which the CMS paper does not have
    inference = InferenceSettings(
        shift=ShiftSettings(n_neighbors=n_neighbors, alpha=alpha),
        min_clusters=min_clusters,
        max_clusters=max_clusters,
        must_link=has_extensions,
        try_average=has_extensions,
        split_mixtures=has_extensions,
        rule=chosen_rule,
        estimate_shifts=defaults["inference.estimate_shifts"],
    )
    return ClusterSettings(n_clusters=number, inference=inference)


def embed(
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder or address of images, shards of images, or a table of paths and labels."
        ),
    ],
    out: Annotated[Path, typer.Option(help="npz file to write.")],
    labels: Labels = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_missing: AllowMissing = False,
    boxes: Boxes = None,
    min_confidence: MinConfidence = None,
    margin: Margin = 0.0,
    whole_images: WholeImages = False,
    encoder: Annotated[
        str, typer.Option(help="Encoder; see `shoal encoders list`.")
    ] = "efficientnet-lite2",
    input_size: InputSize = None,
    device: Device = None,
    force: ForceFile = False,
    json: Json = False,
) -> None:
    """Embed images with a frozen encoder, e.g. `shoal embed photos/ --out features.npz`.

    The file has X (N, D), paths and, if some images are labeled, y. Rows are sorted by path.
    """
    from shoal.device import choose_device
    from shoal.discovery.job import ImageSource
    from shoal.discovery.run_job import (
        check_target,
        embed_collection,
        write_embeddings,
    )
    from shoal.distributed import is_main, processes

    if is_main():
        check_target(out, force=force)
    source = ImageSource(
        images=images,
        labels=labels,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
        boxes=boxes,
        min_confidence=min_confidence,
        margin=margin,
        whole_images=whole_images,
    )
    collection = source.read()
    with processes(choose_device(device)):
        embeddings, skipped = embed_collection(
            collection,
            encoder,
            input_size=input_size,
            device=device,
            reporter=reporter(),
        )
    if not is_main():
        return
    write_embeddings(embeddings, out)
    log_skipped(skipped)
    n_images, n_columns = embeddings.x.shape
    facts = {
        "out": str(out),
        "n_images": n_images,
        "n_columns": n_columns,
        "n_skipped": len(skipped),
    }
    result(str(out), facts, as_json=json)
