"""What one of several processes does and receives while they link the same rows, the trees compared bit for bit.

    python benchmarks/ward_processes.py                          # 20,000 x 256 by 1, 2, 4 and 8 processes
    python benchmarks/ward_processes.py --sizes 3000 6000 --counts 1 2     # from where on sharing pays

Processes are started as torchrun starts them, with one thread each and gloo between them. CPU seconds are those of
linking alone; bytes are what a process is given by the others. Data: that of `ward.py`, with 256 columns.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ward
from shoal import distributed
from shoal.clustering.ward import linkage, ward_linkage

D = 256
TIMEOUT_S = 3600


def counting(name: str, received: list[int]) -> Callable[..., Any]:
    """A function of torch.distributed that also adds up what this process is given by it."""
    original = getattr(dist, name)

    def count(*args: Any, **options: Any) -> Any:
        if name == "all_gather":
            received[0] += sum(part.nbytes for part in args[0]) * (len(args[0]) - 1) // len(args[0])
        elif name == "all_reduce" or dist.get_rank() != 0:
            received[0] += args[0].nbytes
        return original(*args, **options)

    return count


def measure_here(n_rows: int, tree_file: str) -> dict[str, float]:
    """Link once; the main process has the rows, and saves the tree."""
    cpu = torch.device("cpu")
    received = [0]
    for name in ("broadcast", "all_gather", "all_reduce"):
        setattr(dist, name, counting(name, received))
    # also shared where that does not pay
    ward.D = D
    linkage.SHARED_PRODUCTS = 0.0
    rows = ward.make_rows(n_rows) if distributed.is_main() else None
    ward_linkage(np.random.default_rng(0).normal(size=(300, 8)))
    with distributed.processes(cpu):
        distributed.barrier()
        wall = time.perf_counter()
        used = time.process_time()
        if rows is not None:
            with distributed.others_waiting():
                np.save(tree_file, ward_linkage(rows, device="cpu"))
        distributed.flag_from_main(True, cpu)
        wall = time.perf_counter() - wall
        used = time.process_time() - used
    return {"wall": wall, "cpu": used, "received": received[0]}


def run_processes(command: list[str], n_processes: int) -> list[dict[str, float]]:
    """What each of several processes says last, as JSON; started as torchrun starts them, with a thread each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free.getsockname()[1],
            "WORLD_SIZE": n_processes,
        }
    started = []
    for rank in range(n_processes):
        names = shared | {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1}
        environment = os.environ | {name: str(value) for name, value in names.items()}
        started.append(
            subprocess.Popen(
                [sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    said = [process.communicate(timeout=TIMEOUT_S)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{n_processes} processes failed: {' '.join(command)}")
    return [json.loads(each.splitlines()[-1]) for each in said]


def table(sizes: list[int], counts: list[int]) -> list[str]:
    lines = [
        "| N | processes | wall s | CPU s of the main one | of another, most | MB received by another | same tree |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for n_rows in sizes:
            expected = None
            for n_processes in counts:
                file = Path(folder) / f"{n_rows}_{n_processes}.npy"
                main, *others = run_processes(
                    [__file__, "--one", str(n_rows), str(file)], n_processes
                )
                tree = np.load(file)
                expected = tree if expected is None else expected
                rest = " | " if not others else (
                    f"{max(other['cpu'] for other in others):.2f} | {others[0]['received'] / 1e6:.1f}"
                )  # fmt: skip
                same = np.array_equal(tree, expected)
                lines.append(
                    f"| {n_rows:,} | {n_processes} | {main['wall']:.2f} | {main['cpu']:.2f} | {rest} | {same} |"
                )
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000], help="numbers of rows")
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of processes"
    )
    parser.add_argument("--record", type=Path, help="Markdown file to write")
    parser.add_argument("--one", nargs=2, metavar=("N", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_here(int(options.one[0]), options.one[1])))
        return
    lines = table(options.sizes, options.counts)
    if options.record:
        command = "python benchmarks/ward_processes.py " + " ".join(sys.argv[1:])
        text = (
            f"# Exact Ward by several processes\n\n{ward.describe()}. `{command}`\n\n"
            + "\n".join(lines)
            + "\n"
        )
        options.record.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
