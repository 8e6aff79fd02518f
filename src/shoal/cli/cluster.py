"""`shoal cluster`: ready embeddings in, categories out."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.console import Json, command_line, reporter, result, say
from shoal.cli.options import (
    AllowMissing,
    Device,
    DryRun,
    Force,
    LabelColumn,
    NClusters,
    PathColumn,
    Protocol,
)

if TYPE_CHECKING:
    from shoal.data.readers.embeddings import Embeddings
    from shoal.discovery.cluster_embeddings import ClusterSettings
    from shoal.runs import Run


def cluster(
    embeddings: Annotated[
        Path, typer.Argument(help="npy, npz, parquet or csv with a row per image.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Table of paths and labels, or npy in row order, instead of the file's own."
        ),
    ] = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_missing: AllowMissing = False,
    n_clusters: NClusters = None,
    n_neighbors: Annotated[int, typer.Option(help="Neighbors a point moves toward.")] = 8,
    alpha: Annotated[float, typer.Option(help="Weight of their mean, 0 to 1.")] = 0.5,
    rule: Annotated[str | None, typer.Option(help="How K is estimated: pairs, paper.")] = None,
    protocol: Protocol = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write.")] = None,
    device: Device = None,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Discover the categories of embeddings, e.g. `shoal cluster features.npz --labels labels.csv`.

    An npz holds X (N, D) and, where known, y (labels) and paths. Unlabeled is -1, an empty or
    missing label, NaN, 'unlabeled' or 'unknown'.
    """
    from shoal.clustering.inference import check_task
    from shoal.data.readers import label_embeddings, read_embeddings
    from shoal.device import choose_device
    from shoal.discovery.answers import answer_in_words
    from shoal.discovery.cluster_embeddings import cluster_embeddings
    from shoal.discovery.facts import doubt_estimate, linkage_method_of
    from shoal.distributed import by_main, is_main, processes

    home = choose_device(device)
    if not is_main():
        # It takes part in what the main process calls it for, and is sent the embeddings.
        if not dry_run:
            with processes(home):
                by_main(lambda: None, home)
        return
    if labels is None:
        given = read_embeddings(embeddings, path_column=path_column, label_column=label_column)
    else:
        given = label_embeddings(
            read_embeddings(embeddings),
            labels,
            path_column=path_column,
            label_column=label_column,
            allow_missing=allow_missing,
        )
    counted, *notes = given.describe().split("\n")
    if not dry_run:
        say(counted)
    for line in notes:
        say(line)
    settings = _settings(n_clusters, n_neighbors, alpha, rule, protocol)
    check_task(given.labels, settings.n_clusters, settings.inference)
    target = out or Path("runs") / embeddings.stem
    if dry_run:
        result(counted, _plan(given, counted, target, settings.n_clusters), as_json=json)
        say(f"nothing was written; without --dry-run it goes to {target}")
        return

    def work() -> "Run":
        return cluster_embeddings(
            given,
            target,
            settings,
            device=device,
            force=force,
            command=command_line(),
            reporter=reporter(),
        )

    with processes(home):
        run = by_main(work, home)
    assert run is not None
    estimate = run.json("estimate")
    words = answer_in_words(run)
    facts = {
        "run": str(run.path),
        "n_clusters": run.n_clusters,
        "interval": estimate["interval"],
        "range": estimate["range"],
        "by_labels": estimate["by_labels"],
        "doubt": doubt_estimate(run),
        "linkage": linkage_method_of(run),
        "answer": words,
    }
    result(f"{words}\n{run.path}", facts, as_json=json)
    say(f"next: shoal report {shlex.quote(str(run.path))}")


def _settings(
    n_clusters: str | None, n_neighbors: int, alpha: float, rule: str | None, protocol: str | None
) -> "ClusterSettings":
    """What was asked for, over what the protocol says."""
    from shoal.clustering.inference import InferenceSettings
    from shoal.clustering.mean_shift import ShiftSettings
    from shoal.clustering.n_clusters import read_n_clusters
    from shoal.discovery.cluster_embeddings import ClusterSettings
    from shoal.methods.protocols import get_protocol

    decided = get_protocol(protocol or "shoal")
    chosen: dict[str, Any] = {
        "rule": rule or decided["inference.rule"],
        "estimate_shifts": decided["inference.estimate_shifts"],
    }
    shift = ShiftSettings(n_neighbors=n_neighbors, alpha=alpha)
    number, numbers = read_n_clusters(n_clusters)
    is_ours = protocol in (None, "shoal")
    least, most = numbers or (None, None)
    inference = InferenceSettings(
        shift=shift,
        min_clusters=least,
        max_clusters=most,
        must_link=is_ours,
        try_average=is_ours,
        split_mixtures=is_ours,
        **chosen,
    )
    return ClusterSettings(n_clusters=number, inference=inference)


def _plan(
    given: "Embeddings", counted: str, out: Path, n_clusters: int | None
) -> dict[str, object]:
    """What was found in the file, and where it would go."""
    n_labeled = int((given.labels >= 0).sum())
    return {
        "counted": counted,
        "n_embeddings": len(given.names),
        "n_columns": given.x.shape[1],
        "n_labeled": n_labeled,
        "n_unlabeled": len(given.names) - n_labeled,
        "classes": list(given.classes),
        "class_sizes": [int((given.labels == i).sum()) for i in range(len(given.classes))],
        "notes": list(given.notes),
        "n_clusters": n_clusters,
        "out": str(out),
    }
