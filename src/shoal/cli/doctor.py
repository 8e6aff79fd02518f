"""`shoal doctor`: check the installation."""

import platform
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from shoal.cli.console import Json, result
from shoal.errors import ShoalError

GIB = 1 << 30

OPTIONAL = {
    "pillow-heif": "HEIC images",
    "openpyxl": "xlsx tables",
    "pyarrow": "parquet files",
    "pandas": "data frames",
}
"""Packages that shoal can do without, and what they are for."""

PACKAGES = ["torch", "transformers", "numpy", "scipy", "scikit-learn", "pillow", "safetensors"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the result."""

    what: str
    found: str
    is_ok: bool = True
    advice: str = ""


def doctor(json: Json = False) -> None:
    """Check Python, torch, the device, memory and encoder weights, e.g. `shoal doctor`.

    Exits with 4 if something that shoal needs is missing or broken.
    """
    checks = [
        Check("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *packages(),
        *hardware(),
        engine(),
        *encoder_weights(),
    ]
    lines = []
    advice = []
    for check in checks:
        word = "ok "
        if not check.is_ok:
            word = "BAD"
            advice.append(f"{check.what}: {check.advice}")
        lines.append(f"{word}  {check.what:<16} {check.found}")
    end = "\n".join(advice) or "Everything that shoal needs is installed. Next: shoal demo"
    facts = {"ok": not advice, "checks": [asdict(check) for check in checks]}
    result("\n".join([*lines, "", end]), facts, as_json=json)
    if advice:
        raise typer.Exit(4)


def packages() -> list[Check]:
    """Check the required and the optional packages."""
    checks = [Check(name, version(name)) for name in PACKAGES]
    for name, purpose in OPTIONAL.items():
        found = f"not installed; for {purpose}: pip install {name}"
        with suppress(PackageNotFoundError):
            found = version(name)
        checks.append(Check(name, found))
    return checks


def hardware() -> list[Check]:
    """Check the device, its free memory, and the free disk space."""
    from shoal.device import choose_device, describe_device, free_memory

    device = choose_device()
    disk = shutil.disk_usage(Path.cwd()).free
    return [
        Check("device", describe_device(device)),
        Check("free memory", f"{free_memory(device) / GIB:.1f} GiB"),
        Check(
            "free disk",
            f"{disk / GIB:.1f} GiB here",
            disk > GIB,
            "decoded images are cached; free at least 1 GiB",
        ),
    ]


def engine() -> Check:
    """Check which engine runs frozen encoders on the CPU."""
    from shoal.encoders.engines import choose_engine

    try:
        name, reason = choose_engine()
    except ShoalError as error:
        return Check("CPU engine", str(error), is_ok=False, advice="change or unset $SHOAL_ENGINE")
    return Check("CPU engine", f"{name} ({reason})")


def encoder_weights() -> list[Check]:
    """List the encoders whose weights are installed; only the default encoder is needed."""
    from shoal.encoders.catalog import DEFAULT_ENCODER, ENCODERS, is_available

    installed = [name for name in ENCODERS if is_available(name)]
    missing = [name for name in ENCODERS if name not in installed]
    package = ENCODERS[DEFAULT_ENCODER].location.replace("_", "-")
    return [
        Check(
            "encoders",
            ", ".join(installed) or "none",
            DEFAULT_ENCODER in installed,
            f"pip install {package}",
        ),
        Check("not downloaded", f"{', '.join(missing) or 'none'} (optional)"),
    ]
