"""What one of several processes holds of a pool of views, and what a step of training sends.

    python benchmarks/pool_memory.py                                # 300 images of 16 views by 1, 2 and 4 processes
    python benchmarks/pool_memory.py --images 1000 --counts 2 --record FILE

Processes are started as torchrun starts them, with one thread each and gloo between them. What a process holds is what
it has taken of memory that no other one maps (Pss_Anon of /proc/self/smaps_rollup), before the pool and after an
epoch of training from it. The images are noise in a mapped file; encoder and recipe are those of `shoal discover`.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import ward
from shoal import distributed
from shoal.encoders.catalog import load_encoder
from shoal.methods.cms import Cms
from shoal.methods.registry import load_recipe
from shoal.training.data import TrainingData
from shoal.training.model import TaskShape
from shoal.training.trainer import Trainer
from ward_processes import run_processes

EPOCHS = 20
"""Those of a run that looks at nearly every view of the pool; one of them is trained here."""


def private_bytes() -> int:
    """What this process holds for itself alone, beside mapped files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return int(dict(line.split(":", 1) for line in lines)["Pss_Anon"].split()[0]) * 1024


def measure_here(file: str) -> dict[str, float]:
    """Make the pool of the images in a file and train for an epoch."""
    cpu = torch.device("cpu")
    received = [0]
    original = dist.all_to_all_single

    def count(output: torch.Tensor, sent: torch.Tensor, *splits: list[int] | None) -> object:
        given, by_itself = (
            (splits[0], splits[0][dist.get_rank()]) if splits and splits[0] else ([len(output)], 1)
        )
        received[0] += output.nbytes * (sum(given) - by_itself) // max(1, sum(given))
        return original(output, sent, *splits)

    dist.all_to_all_single = count
    settings = load_recipe()
    settings = replace(settings, training=replace(settings.training, epochs=EPOCHS, batch_size=32))
    pixels = np.load(file, mmap_mode="r")
    labels = np.where(np.arange(len(pixels)) % 4 < 2, np.arange(len(pixels)) % 4, -1)
    with distributed.processes(cpu):
        torch.manual_seed(0)
        encoder = load_encoder(settings.encoder, n_tail_blocks=settings.n_tail_blocks)
        model = Cms(encoder, settings, TaskShape(n_images=len(pixels), n_known=2, n_clusters=None))
        trainer = Trainer(TrainingData(pixels=pixels, labels=labels), model, settings.training)
        before = private_bytes()
        used = time.process_time()
        trainer.prepare()
        used = time.process_time() - used
        pool = trainer.forward.pool
        assert pool is not None
        loss = trainer.run_epoch(0)["loss"]
        distributed.barrier()
        return {
            "tokens": pool.tokens.nbytes,
            "private": private_bytes() - before,
            "cpu": used,
            "received": received[0] / (len(pixels) // settings.training.batch_size),
            "loss": loss,
        }


def table(n_images: int, counts: list[int]) -> list[str]:
    lines = [
        "| processes | tokens of the pool, MB, most | private memory taken, MB, most | CPU s of the pool, most "
        "| MB received in a step, most | loss of the epoch |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pixels.npy"
        np.save(
            file, np.random.default_rng(0).integers(0, 256, (n_images, 256, 256, 3), dtype=np.uint8)
        )
        for n_processes in counts:
            found = run_processes([__file__, "--one", str(file)], n_processes)
            tokens, private, used, received = (
                max(one[name] for one in found) for name in ("tokens", "private", "cpu", "received")
            )
            lines.append(
                f"| {n_processes} | {tokens / 1e6:.0f} | {private / 1e6:.0f} | {used:.0f} | {received / 1e6:.2f} "
                f"| {found[0]['loss']:.6f} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=300, help="number of images")
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[1, 2, 4], help="numbers of processes"
    )
    parser.add_argument("--record", type=Path, help="Markdown file to write")
    parser.add_argument("--one", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_here(options.one)))
        return
    lines = table(options.images, options.counts)
    if options.record:
        command = "python benchmarks/pool_memory.py " + " ".join(sys.argv[1:])
        text = (
            f"# A pool of views by several processes\n\n{ward.describe()}. `{command}`\n\n"
            + "\n".join(lines)
            + "\n"
        )
        options.record.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
