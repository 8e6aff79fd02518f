"""Measure time and memory of exact Ward against scipy and fastcluster, and compare the trees.

    python benchmarks/ward.py --device cpu                 # 2,000 to 30,000 rows, every tool
    python benchmarks/ward.py --device cpu --sizes 127000 --tools shoal
    python benchmarks/ward.py --sizes 3000 8000 --tools "shoal tight" "scipy tight"
    python benchmarks/ward.py --sizes 2600 5000 --tools "shoal one-hot" "scipy one-hot"
    python benchmarks/ward.py --device cuda                # GPU = CPU bit for bit, 6k to 1.28M rows
    python benchmarks/ward.py --device cuda --columns 256 --sizes 1280000 5000000

Every measurement runs in a separate process; its peak memory includes the interpreter and the data.
CPU seconds are summed over threads. Data: 200 clusters, d = 768, unit norm, spectrum i^-0.5, noise
1.45; `shifted` moves every row twelve times halfway to the mean of its 8 nearest; `tight` rows lie
around 20 centers, at a distance of about 1e-6.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from records import write_table

D = 768
N_CENTERS = 200
NOISE = 1.45
SEED = 0
TOOLS = ("shoal", "shoal shifted", "fastcluster", "scipy")
TIGHT_TOOLS = ("shoal tight", "scipy tight")
ONE_HOT_TOOLS = ("shoal one-hot", "scipy one-hot")
MATRIX_LIMIT = dict.fromkeys(("scipy", "scipy tight", "fastcluster"), 20_000)
CPU_SIZES = [2_000, 5_000, 10_000, 20_000, 30_000]
CUDA_SIZES = [6_000, 12_000, 50_000, 127_000, 1_280_000]
TIMEOUT_S = 3600


def make_rows(n: int, shifted: bool = False) -> np.ndarray:
    """Return (n, D) float32, created in chunks to keep the peak memory low."""
    rng = np.random.default_rng(SEED)
    spectrum = (np.arange(1, D + 1) ** -0.5).astype(np.float32)
    centers = rng.normal(size=(N_CENTERS, D)).astype(np.float32)
    rows = np.empty((n, D), np.float32)
    for start in range(0, n, 4096):
        part = rows[start : start + 4096]
        noise = rng.standard_normal(size=part.shape, dtype=np.float32)
        part[:] = (
            centers[rng.integers(N_CENTERS, size=len(part))] + np.float32(NOISE) * noise
        ) * spectrum
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return shift(rows) if shifted else rows


def tight_rows(n: int, n_centers: int = 20, gap: float = 1e-6) -> np.ndarray:
    """Return (n, D) float32 unit rows around a few centers."""
    rng = np.random.default_rng(SEED)
    centers = rng.normal(size=(n_centers, D))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    rows = centers[rng.integers(n_centers, size=n)] + gap * rng.normal(size=(n, D)) / D**0.5
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def shift(rows: np.ndarray, n_steps: int = 12, k: int = 8) -> np.ndarray:
    import torch

    moved = torch.as_tensor(rows)
    for _ in range(n_steps):
        nearest = [
            (part @ moved.T).topk(k + 1, 1).indices[:, 1:] for part in torch.split(moved, 512)
        ]
        means = torch.cat([moved[index].mean(1) for index in nearest])
        moved = torch.nn.functional.normalize(0.5 * moved + 0.5 * means, dim=1)
    return moved.numpy()


def prepared(tool: str, n: int) -> Callable[[], np.ndarray]:
    """Import a tool, make the data and build a small tree to warm up; return the call to time."""
    if tool.endswith("one-hot"):
        rows = np.eye(n, dtype=np.float32)
    elif tool.endswith("tight"):
        rows = tight_rows(n)
    else:
        rows = make_rows(n, shifted=tool.endswith("shifted"))
    if tool.startswith("shoal"):
        from shoal.clustering.ward import ward_linkage

        ward_linkage(rows[:300], device="cpu")
        return lambda: ward_linkage(rows, device="cpu")
    if tool.startswith("scipy"):
        from scipy.cluster.hierarchy import linkage

        return lambda: linkage(rows, "ward")
    import fastcluster

    return lambda: fastcluster.linkage(rows.astype(np.float64), "ward")


def measure_here(tool: str, n: int, tree_file: str) -> dict[str, float]:
    """Measure a tool in this process, and write its tree."""
    call = prepared(tool, n)
    wall = time.perf_counter()
    cpu = time.process_time()
    Z = call()
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    np.save(tree_file, Z)
    return {
        "wall": wall,
        "cpu": cpu,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def measure(tool: str, n: int, tree_file: Path) -> dict[str, float]:
    """Measure a tool in a new process."""
    command = [sys.executable, __file__, "--one", tool, str(n), str(tree_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} at {n:,} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Return the largest relative difference of heights, and whether flat clusters are equal."""
    from shoal.clustering.tree import Tree

    error = float((np.abs(ours[:, 2] - theirs[:, 2]) / theirs[:, 2].clip(1e-12)).max())
    a = Tree(ours)
    b = Tree(theirs)
    same = all(np.array_equal(a.cut(k), b.cut(k)) for k in (50, 100, 200))
    return f"heights {error:.0e}, cuts {'same' if same else 'DIFFER'}"


def cpu_table(sizes: list[int], tools: list[str]) -> list[str]:
    lines = [
        "| N | tool | wall s | CPU s | peak GiB | against shoal |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            ours = None
            for tool in tools:
                if n > MATRIX_LIMIT.get(tool, n):
                    continue
                file = Path(folder) / f"{n}_{tool.replace(' ', '_')}.npy"
                found = measure(tool, n, file)
                note = ""
                if tool in ("shoal", "shoal tight", "shoal one-hot"):
                    ours = np.load(file)
                elif ours is not None and not tool.endswith("shifted"):
                    note = compare(ours, np.load(file))
                cells = f"{found['wall']:.2f} | {found['cpu']:.2f} | {found['gib']:.2f}"
                lines.append(f"| {n:,} | {tool} | {cells} | {note} |")
                print(lines[-1], flush=True)
    return lines


def check_gpu() -> list[str]:
    """Compare the GPU's trees with the CPU's, bit for bit, on eight kinds of data."""
    from shoal.clustering.ward import ward_linkage

    raw = make_rows(4_000)
    twice = raw.copy()
    twice[2_500:] = raw[:1_500]
    grid = np.random.default_rng(0).integers(0, 3, size=(1_500, 6)).astype(np.float32)
    kinds = {
        "raw": raw,
        "raw, odd": raw[:2_777, :301],
        "duplicates": twice,
        "ties": grid,
        "shifted": shift(raw),
        "float64": raw[:1_500].astype(np.float64),
        "larger": make_rows(12_000),
        "tight": tight_rows(4_000),
    }
    lines = []
    for name, rows in kinds.items():
        same = np.array_equal(ward_linkage(rows, device="cuda"), ward_linkage(rows, device="cpu"))
        lines.append(f"GPU = CPU bit for bit, {name} {rows.shape}: {same}")
        print(lines[-1], flush=True)
        if not same:
            raise SystemExit("the GPU's tree differs")
    return lines


def cuda_rows(n: int, n_columns: int) -> Any:
    """Return data like that of `make_rows`, created on the GPU."""
    import torch

    generator = torch.Generator("cuda").manual_seed(SEED)
    spectrum = torch.arange(1, n_columns + 1, device="cuda") ** -0.5
    centers = torch.randn(N_CENTERS, n_columns, device="cuda", generator=generator)
    rows = torch.empty(n, n_columns, device="cuda")
    for part in torch.split(rows, 1 << 16):
        index = torch.randint(N_CENTERS, (len(part),), device="cuda", generator=generator)
        noise = torch.randn(part.shape, device="cuda", generator=generator)
        part[:] = torch.nn.functional.normalize((centers[index] + NOISE * noise) * spectrum, dim=1)
    return rows


def cuda_table(sizes: list[int], n_columns: int) -> list[str]:
    import torch

    from shoal.clustering.ward import triton_scan, ward_linkage

    lines = [
        "| N | kernel | wall s | best of | peak GiB of the GPU | same tree |",
        "|---|---|---|---|---|---|",
    ]
    ward_linkage(cuda_rows(40_000, n_columns))  # compiles the kernels
    for n in sizes:
        rows = cuda_rows(n, n_columns)
        expected = None
        is_small = n <= 200_000
        repeats = 3 if is_small else 1
        for is_fused in (True, False):
            if is_fused and not triton_scan.is_available(rows.device):
                continue
            if not is_fused and not is_small:
                continue
            walls = []
            torch.cuda.reset_peak_memory_stats()
            with mock.patch.object(triton_scan, "is_available", return_value=is_fused):
                for _ in range(repeats + is_small):  # for small sizes, the first run warms up
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    Z = ward_linkage(rows)
                    walls.append(time.perf_counter() - start)
            same = "" if expected is None else str(np.array_equal(Z, expected))
            expected = Z
            peak = torch.cuda.max_memory_allocated() / 2**30
            name = "fused" if is_fused else "torch"
            lines.append(f"| {n:,} | {name} | {min(walls):.3f} | {repeats} | {peak:.1f} | {same} |")
            print(lines[-1], flush=True)
        del rows
        torch.cuda.empty_cache()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--sizes", type=int, nargs="+", help="numbers of rows (default: those of the table)"
    )
    parser.add_argument(
        "--columns", type=int, default=D, help="columns of the rows on a GPU (default: %(default)s)"
    )
    parser.add_argument(
        "--tools", nargs="+", choices=TOOLS + TIGHT_TOOLS + ONE_HOT_TOOLS, default=list(TOOLS)
    )
    parser.add_argument("--record", type=Path, help="Markdown file to write")
    parser.add_argument("--one", nargs=3, metavar=("TOOL", "N", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        tool, n, file = options.one
        print(json.dumps(measure_here(tool, int(n), file)))
        return
    if options.device == "cpu":
        lines = cpu_table(options.sizes or CPU_SIZES, options.tools)
    else:
        lines = [*check_gpu(), "", *cuda_table(options.sizes or CUDA_SIZES, options.columns)]
    write_table(lines, options.record)


if __name__ == "__main__":
    main()
