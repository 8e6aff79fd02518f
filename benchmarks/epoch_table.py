"""The table of `training.py`: seconds of an epoch and milliseconds of a step, a column for each way of running them."""

import os
import platform
import subprocess
import sys
from typing import Any

import torch

Times = dict[str, float]
"""Seconds by what they were spent on."""

EPOCH_PARTS = ("bank", "training", "validation embedding", "tree and K")
STEP_PARTS = (
    "views from the pool",
    "cut",
    "colors and trunk",
    "tail and head",
    "loss",
    "backward",
    "optimizer",
)


def seconds_of_an_epoch(times: Times) -> float:
    return sum(times[part] for part in EPOCH_PARTS)


def epoch_table(
    size: Any,
    device: torch.device,
    times: dict[str, Times],
    rows: list[tuple[str, str]],
    faults: list[str],
) -> str:
    """All that was found, in Markdown; `size` is the `Size` of `training.py`."""
    pool = f", {size.pool} views of each image" if size.pool else ""
    lines = [
        f"# An epoch of training: {size.network} at {size.input_size} px, {size.n_images:,} images + "
        f"{size.n_validation:,} for validation, batch {size.batch_size}{pool}",
        "",
        f"{hardware(device)}; torch {torch.__version__}, Python {platform.python_version()}, commit {commit()}.",
        f"Command: `python {' '.join(sys.argv)}`. Seconds of wall time: the best epoch of ours after the first (which "
        "warms up, and is given apart), one epoch of the straightforward loop.",
        "",
    ]
    if times:
        lines += [*epoch_rows(times), ""]
    stepped = {name: found for name, found in times.items() if "loss" in found}
    if stepped:
        lines += [*step_rows(stepped, size.n_images // size.batch_size), ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    lines += ["", *(f"**Fault:** {fault}" for fault in faults)]
    return "\n".join(lines).rstrip() + "\n"


def epoch_rows(times: dict[str, Times]) -> list[str]:
    totals = {name: seconds_of_an_epoch(found) for name, found in times.items()}
    lines = heading("seconds", times)
    for part in (*EPOCH_PARTS, "CPU seconds of this process", "first epoch", "once"):
        lines.append(
            row(part, [f"{found[part]:.2f}" if part in found else "" for found in times.values()])
        )
    lines.append(row("**epoch**", [f"**{total:.2f}**" for total in totals.values()]))
    if "straightforward" in totals:
        ratios = [f"{totals['straightforward'] / total:.1f} ×" for total in totals.values()]
        lines.append(row("times as fast as the straightforward loop", ratios))
    return lines


def step_rows(times: dict[str, Times], n_steps: int) -> list[str]:
    lines = [
        f"Milliseconds of a step ({n_steps} an epoch) by its parts, the device waited for after each:",
        "",
    ]
    lines += heading("milliseconds", times)
    for part in STEP_PARTS:
        if any(part in found for found in times.values()):
            lines.append(
                row(part, [f"{1000 * found[part] / n_steps:.2f}" for found in times.values()])
            )
    sums = [
        1000 * sum(found.get(part, 0) for part in STEP_PARTS) / n_steps for found in times.values()
    ]
    lines.append(row("sum", [f"{total:.2f}" for total in sums]))
    unsplit = [1000 * found["training"] / n_steps for found in times.values()]
    return [*lines, row("a step without the waiting", [f"{total:.2f}" for total in unsplit])]


def heading(first: str, columns: dict[str, Times]) -> list[str]:
    return [row(first, list(columns)), f"|---|{'---|' * len(columns)}"]


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores"
    return f"{platform.machine()}, {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
