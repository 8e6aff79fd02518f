"""`shoal embed`: images in, a file of embeddings out."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, reporter, result, say
from shoal.cli.options import AllowMissing, Device, ForceFile, InputSize, LabelColumn, PathColumn


def embed(
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder of images, its address, shards of images, or a table of paths and labels."
        ),
    ],
    out: Annotated[Path, typer.Option(help="npz, parquet or npy file to write.")],
    labels: Annotated[
        Path | None, typer.Option(help="Table of paths and labels (csv, tsv, jsonl, parquet).")
    ] = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_missing: AllowMissing = False,
    encoder: Annotated[str, typer.Option(help="See `shoal encoders list`.")] = "efficientnet-lite2",
    input_size: InputSize = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Numbers in the file: float32, or float16 for half its size; see docs/scale.md."
        ),
    ] = "float32",
    device: Device = None,
    force: ForceFile = False,
    json: Json = False,
) -> None:
    """Embed images with an encoder as it comes, e.g. `shoal embed photos/ --out features.npz`.

    An npz holds X (N, D), paths and, where some images are labeled, y; rows are sorted by path.
    """
    from shoal.data.readers import read_collection
    from shoal.device import choose_device
    from shoal.discovery.embed_collection import (
        check_dtype,
        check_target,
        embed_collection,
        write_embeddings,
    )
    from shoal.distributed import is_main, processes

    check_dtype(dtype)
    if is_main():
        check_target(out, force=force)
    collection = read_collection(
        images,
        labels,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
    )
    with processes(choose_device(device)):
        embedded = embed_collection(
            collection,
            encoder,
            input_size=input_size,
            dtype=dtype,
            device=device,
            reporter=reporter(),
        )
    if not is_main():
        return
    write_embeddings(embedded, out)
    for image in embedded.skipped:
        say(f"note: {image.name} left out, {image.reason}")
    n_images, n_columns = embedded.x.shape
    answer = {
        "out": str(out),
        "n_images": n_images,
        "n_columns": n_columns,
        "dtype": dtype,
        "n_skipped": len(embedded.skipped),
    }
    result(str(out), answer, as_json=json)
    say(f"next: shoal cluster {shlex.quote(str(out))}")
