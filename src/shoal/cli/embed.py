"""`shoal embed`: write the embeddings of images to a file."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import (
    AllowMissing,
    Boxes,
    Device,
    ForceFile,
    InputSize,
    Json,
    LabelColumn,
    Labels,
    Margin,
    MinConfidence,
    PathColumn,
    WholeImages,
    log_skipped,
    reporter,
    result,
)


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
