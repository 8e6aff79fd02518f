"""`shoal encoders`: list the encoders."""

import typer

from shoal.cli.console import Json, result

encoders = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List the encoders.")


@encoders.command("list", short_help="List the encoders by name.")
def list_encoders(json: Json = False) -> None:
    """List the encoders by name, e.g. `shoal encoders list`.

    Other vision models can be used by their id on the Hugging Face hub, or by their folder.
    """
    from shoal.encoders.catalog import DEFAULT_ENCODER, ENCODERS, is_available

    rows = [
        {
            "name": name,
            "is_default": name == DEFAULT_ENCODER,
            "is_installed": is_available(name),
            "size_mb": info.size_mb,
            "input_size": info.input_format.size,
            "weights_from": info.source,
            "pretrained_on": info.pretrained_on,
        }
        for name, info in ENCODERS.items()
    ]
    width = max(len(info.source) for info in ENCODERS.values())
    start = f"{'name':<20} {'installed':<9} {'size':>7}  {'input':>6}"
    lines = [f"{start}  {'weights from':<{width}} pretrained on"]
    lines += [
        f"{row['name']:<20} {'yes' if row['is_installed'] else 'no':<9} {row['size_mb']:>4} MB  "
        f"{row['input_size']:>3} px  {row['weights_from']:<{width}} {row['pretrained_on']}"
        for row in rows
    ]
    lines += [
        "",
        "Other weights: a folder saved by transformers, or an id on the Hugging Face hub",
        f"The default is {DEFAULT_ENCODER}. Next: shoal discover photos/ --encoder NAME",
    ]
    result("\n".join(lines), {"encoders": rows}, as_json=json)
