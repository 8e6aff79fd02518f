"""`shoal encoders`: which encoders there are, whether their weights are here, and how these come
here.
"""

from typing import Annotated

import typer

from shoal.cli.console import Json, reporter, result, say

encoders = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Encoders and their weights."
)


@encoders.command("list")
def list_encoders(json: Json = False) -> None:
    """List the encoders by name, e.g. `shoal encoders list`.

    Any other vision model of the Hugging Face hub goes by its id, and one on disk by its folder.
    """
    from shoal.encoders.catalog import DEFAULT_ENCODER, ENCODERS, is_available
    from shoal.encoders.weights import weights_folder

    rows = [
        {
            "name": name,
            "is_default": name == DEFAULT_ENCODER,
            "is_here": is_available(name),
            "size_mb": info.size_mb,
            "input_size": info.input_format.size,
            "weights_from": info.source,
            "pretrained_on": info.pretrained_on,
        }
        for name, info in ENCODERS.items()
    ]
    width = max(len(info.source) for info in ENCODERS.values())
    lines = [
        f"{'name':<20} {'here':<5} {'size':>7}  {'input':>6}  {'weights from':<{width}} pretrained "
        "on"
    ]
    lines += [
        f"{row['name']:<20} {'yes' if row['is_here'] else 'no':<5} {row['size_mb']:>4} MB  "
        f"{row['input_size']:>3} px  "
        f"{row['weights_from']:<{width}} {row['pretrained_on']}"
        for row in rows
    ]
    lines += [
        "",
        "A .pth file, or a folder saved by transformers under the encoder's name, goes into "
        f"{weights_folder()}",
    ]
    lines.append(f"The default is {DEFAULT_ENCODER}. Next: shoal discover photos/ --encoder NAME")
    result(
        "\n".join(lines),
        {"encoders": rows},
        as_json=json,
    )


@encoders.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name of `shoal encoders list`.")],
    json: Json = False,
) -> None:
    """Download the weights of an encoder, once, e.g. `shoal encoders get dinov2-small`.

    The size is said first. A connection that breaks is taken up where it broke, a file with another
    checksum than the hub's is thrown away, and nothing that is fetched can run code. Other commands
    never download an encoder of the list.
    """
    from dataclasses import asdict

    from shoal.discovery.get_encoder import get_encoder

    downloaded = get_encoder(name, reporter())
    result(downloaded.path or name, asdict(downloaded), as_json=json)
    say(f"next: shoal discover photos/ --encoder {name}")
