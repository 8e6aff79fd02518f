"""Write the record of a measurement, with its command, commit and hardware.

torch is imported only where it is needed, so that it does not add to measured memory.
"""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np


def commit_of(folder: Path = Path(__file__).parent) -> str:
    """Return the short hash of the commit that is checked out in `folder`, or 'unknown'."""
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return completed.stdout.strip() or "unknown"


def hardware() -> str:
    """Return the processor, the number of torch threads, and the GPU if there is one."""
    import torch

    listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    models = [
        line.split(":", 1)[1].strip()
        for line in listed.splitlines()
        if line.startswith("Model name")
    ]
    model = models[0] if models else platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{model}, {torch.get_num_threads()} threads{gpu}"


def header(argv: list[str]) -> list[str]:
    """Return time and commit, then command, hardware and versions."""
    import torch

    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    return [
        f"## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit_of()}",
        f"`{shlex.join(['python', *argv])}` on {hardware()}, {versions}",
    ]


def write(lines: list[str], record: Path | None) -> None:
    """Print paragraphs, and append them to the file `record` if one is given."""
    text = "\n\n".join(lines) + "\n"
    print(text)
    if record:
        record.parent.mkdir(parents=True, exist_ok=True)
        with record.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def write_table(rows: list[str], record: Path | None, *notes: str) -> None:
    """Write a Markdown table under the header of this call, with notes below it."""
    write([*header(sys.argv), "\n".join(rows), *notes], record)
