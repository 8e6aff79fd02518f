"""An epoch of training, ours beside a straightforward loop of the released shape, in one run.

    python benchmarks/training.py --device cuda --record benchmarks/results/DATE_HARDWARE_training.md
    python benchmarks/training.py --device cuda --parts memory
    python benchmarks/training.py --device cuda --network efficientnet-lite2 --parts eager
    python benchmarks/training.py --device cpu           # efficientnet-lite2 at 128 px, 1,800 images, two threads
    python benchmarks/training.py --rehearse             # everything, tiny, on the CPU, in about a minute

An epoch is: renew the bank, train on every batch, embed as many validation images again, Ward's tree, sweep of K. The
parts of a step are timed in one more epoch, waiting for the device after each. The straightforward loop is that of
`straightforward.py`. Weights are random, pictures synthetic and every one different; ours has them decoded, the
straightforward loop as JPEG files of 500 x 375.

Ends with an error, after the table, where a step waits for the device, or a limit is missed.
"""

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from epoch_setup import CPU, GPU, REHEARSAL, Size, make_encoder, make_labels, make_trainer, pictures
from epoch_table import STEP_PARTS, Times, epoch_table, seconds_of_an_epoch
from shoal.encoders.head import Head
from shoal.training.trainer import Trainer
from straightforward import straightforward_epoch

WAYS = ("eager",)
"""How the networks are run."""

PARTS = (*WAYS, "straightforward", "memory")

LOSS_TOLERANCE = {"first step": 0.01, "every step": 0.05}
"""How far, relatively, losses of two ways may lie apart: in bfloat16, and after a few dozen steps, not far."""


def main() -> None:
    arguments = parse()
    size = REHEARSAL if arguments.rehearse else GPU if arguments.device == "cuda" else CPU
    if arguments.network not in (None, size.network):
        size = replace(size, network=arguments.network, limit_s=None, min_ratio=None)
    size = replace(size, pool=arguments.pool)
    device = torch.device("cpu" if arguments.rehearse else arguments.device)
    parts = arguments.parts or (
        PARTS if device.type == "cuda" or arguments.rehearse else ("eager",)
    )
    if device.type == "cpu":
        torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.benchmark = arguments.cudnn_benchmark
    record = measure(size, device, parts)
    report = epoch_table(size, device, record.times, record.rows, record.faults)
    print(report)
    if arguments.record:
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(report, encoding="utf-8")
    if record.faults:
        sys.exit("\n".join(["FAULTS", *record.faults]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        help="only these; all of them unless told, on a CPU eager",
    )
    parser.add_argument(
        "--network", choices=("vit-b16", "efficientnet-lite2"), help="another than the device's own"
    )
    parser.add_argument(
        "--pool", type=int, help="choose from so many views of each image, made once"
    )
    parser.add_argument("--record", type=Path, help="also write the table to this file")
    parser.add_argument(
        "--rehearse", action="store_true", help="tiny sizes on the CPU, to see that all of it runs"
    )
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument(
        "--cudnn-benchmark", action="store_true", help="let cuDNN try its algorithms first"
    )
    return parser.parse_args()


@dataclass
class Record:
    """What was found: columns of seconds, single rows, and what is wrong."""

    times: dict[str, Times] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    """Of every step of the first epoch, by the way it was run."""
    rows: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def measure(size: Size, device: torch.device, parts: tuple[str, ...]) -> Record:
    record = Record()
    began = time.perf_counter()

    def tell(what: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    tell("this device beside the CPU")
    check(device, record)
    images, labels = (
        (pictures(size), make_labels(size)) if set(parts) - {"memory"} else (None, None)
    )
    for way in [way for way in WAYS if way in parts]:
        tell(f"ours, {way}")
        ours(size, device, images, labels, way, record)
    if "straightforward" in parts:
        tell("the straightforward loop")
        record.times["straightforward"] = straightforward(size, device, images, labels)
    if "memory" in parts:
        for n_images in size.memory_for:
            tell(f"memory for {n_images:,} images")
            record.rows.append(
                (f"peak GPU memory, {n_images:,} images", peak_memory(size, n_images, device))
            )
    if record.losses:
        compare(record)
    check_limits(size, record)
    tell("done")
    return record


def compare(record: Record) -> None:
    """Hold the losses of every way against those of the first."""
    first, *others = record.losses
    for other in others:
        apart = [
            abs(b / a - 1) for a, b in zip(record.losses[first], record.losses[other], strict=True)
        ]
        for where, found in (("first step", apart[0]), ("every step", max(apart))):
            record.rows.append(
                (f"loss of {where}, {other} and {first}, relative difference", f"{found:.1e}")
            )
            if not found <= LOSS_TOLERANCE[where]:  # NaN too
                record.faults.append(
                    f"losses of {other} and {first} are {found:.1e} apart ({where})"
                )


def check_limits(size: Size, record: Record) -> None:
    """The best of ours against what was promised."""
    totals = {name: seconds_of_an_epoch(times) for name, times in record.times.items()}
    slow = totals.pop("straightforward", None)
    best = min(totals.values(), default=None)
    if best is None:
        return
    if size.limit_s is not None and best > size.limit_s:
        record.faults.append(f"an epoch takes {best:.1f} s, more than {size.limit_s:g}")
    if size.min_ratio is not None and slow is not None and slow / best < size.min_ratio:
        record.faults.append(
            f"{slow / best:.1f} times as fast as the straightforward loop, less than {size.min_ratio}"
        )


def ours(
    size: Size,
    device: torch.device,
    images: np.ndarray,
    labels: np.ndarray,
    way: str,
    record: Record,
) -> None:
    """An epoch to warm up (and to compile in), then others, of which the best counts."""
    free(device)
    torch.manual_seed(0)
    trainer = make_trainer(size, device, images, labels)
    once = Clock(device)
    once("once", trainer.prepare)
    times = once.times
    losses = keep_losses(trainer)
    for epoch in range(3 if device.type == "cuda" else 2):
        clock = Clock(device)
        trainer.forget_embeddings()
        clock("bank", lambda: trainer.embed_all())
        clock("training", lambda epoch=epoch: trainer.run_epoch(epoch))
        clock("validation embedding", lambda: trainer.embed_all())
        clock("tree and K", lambda: trainer.validate())
        if epoch == 0:
            times["first epoch"] = sum(clock.times.values())
            record.losses[way] = torch.stack(losses).tolist()
        elif "training" not in times or sum(clock.times.values()) < seconds_of_an_epoch(times):
            times |= clock.times | {"CPU seconds of this process": clock.cpu}
    if device.type == "cuda":
        check_waiting(trainer, record)
    record.times[f"ours, {way}"] = times | step_times(trainer, device)


def keep_losses(trainer: Trainer) -> list[torch.Tensor]:
    """The loss of every step from now on, on the device."""
    losses = []
    step = trainer._step

    def keep(*given):
        found = step(*given)
        losses.append(found["loss"].clone())
        return found

    trainer._step = keep
    return losses


def check_waiting(trainer: Trainer, record: Record) -> None:
    """Whether a step waits for the device anywhere, as a copy from or to the host makes it do."""
    trainer.begin_epoch(0)
    batches, draws = trainer._draw(0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    found = "no"
    try:
        trainer._step(batches[0], draws[0], 0, torch.Generator())
    except RuntimeError as error:
        place = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "shoal" in frame.filename
        ][-1]
        found = f"{Path(place.filename).name}, line {place.lineno}: {place.line}"
        record.faults.append(f"a step waits for the device: {found}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    record.rows.append(("a step waits for the device", found))


def step_times(trainer: Trainer, device: torch.device) -> Times:
    """The seconds of one more epoch by the parts of its steps, the device waited for after each."""
    clock = Clock(device)
    passes = trainer.forward
    places = [(passes, "cut"), (passes, "tokens"), (passes, "outputs"), (trainer.model, "loss")]
    places = [(passes.pool, "take"), *places, (trainer, "_backward"), (trainer, "_update")]
    for part, (owner, name) in zip(STEP_PARTS, places, strict=True):
        if owner is not None:
            setattr(owner, name, timed(clock, part, getattr(owner, name)))
    trainer.run_epoch(2)
    return clock.times


def timed(clock: "Clock", name: str, work: Callable) -> Callable:
    return lambda *given, **named: clock(name, lambda: work(*given, **named))


def straightforward(
    size: Size, device: torch.device, images: np.ndarray, labels: np.ndarray
) -> Times:
    free(device)
    encoder = make_encoder(size).to(device)
    head = Head(encoder.feature_dim, replace(size.head, kind="bottleneck")).to(device)
    clock = Clock(device)
    n_known = size.n_classes // 2
    straightforward_epoch(
        encoder,
        head,
        images,
        labels,
        n_training=size.n_images,
        batch_size=size.batch_size,
        n_known=n_known,
        clock=clock,
    )
    return clock.times | {"CPU seconds of this process": clock.cpu}


def peak_memory(size: Size, n_images: int, device: torch.device) -> str:
    """Pixels and tokens of all images on the device, the bank, and a few steps."""
    free(device)
    images = torch.randint(
        0, 256, (n_images, size.side, size.side, 3), dtype=torch.uint8, device=device
    )
    labels = np.where(np.arange(n_images) % 4 == 0, np.arange(n_images) % size.n_classes, -1)
    trainer = make_trainer(replace(size, n_images=n_images, n_validation=0), device, images, labels)
    trainer.prepare()
    trainer.begin_epoch(0)
    batches, draws = trainer._draw(0)
    for rows, look in list(zip(batches, draws, strict=True))[:5]:
        trainer._step(rows, look, 0, torch.Generator())
    where = "in memory" if trainer.tokens.is_resident else "in a file"
    if device.type != "cuda":
        return f"no GPU, tokens {where}"
    taken = torch.cuda.max_memory_allocated() / 2**30
    held = torch.cuda.max_memory_reserved() / 2**30
    return f"{taken:.1f} GiB ({held:.1f} with what torch holds in reserve), tokens {where}"


def free(device: torch.device) -> None:
    """Let go of what was measured before: networks, compiled code, graphs and their memory."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class Clock:
    """Wall seconds of named parts, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times = {}
        self.cpu = 0.0

    def __call__(self, name: str, work: Callable):
        """Do the work, add its time to its name, return what it returns."""
        self._wait()
        began = time.perf_counter()
        cpu = time.process_time()
        result = work()
        self._wait()
        self.cpu += time.process_time() - cpu
        self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - began
        return result

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def check(device: torch.device, record: Record) -> None:
    """What must hold on this device before its times mean anything."""
    size = replace(REHEARSAL, batch_size=16)
    images = pictures(size)
    labels = make_labels(size)
    encoder = make_encoder(size)
    batch = torch.randn(4, 3, 56, 56, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = encoder(batch)
        error = float(
            (encoder.to(device)(batch.to(device)).cpu() - expected).abs().max()
            / expected.abs().max()
        )
    losses = []
    for where in ("cpu", device.type):
        torch.manual_seed(0)
        trainer = make_trainer(size, torch.device(where), images, labels)
        trainer.prepare()
        losses.append(trainer.run_epoch(0)["loss"])
        assert trainer.validate().n_clusters is not None
    off = abs(losses[1] - losses[0]) / abs(losses[0])
    for what, found, limit in (
        ("features in float32", error, 1e-3),
        ("loss of the first epoch", off, 0.02),
    ):
        record.rows.append(
            (f"{what}, this device and the CPU, relative difference", f"{found:.1e}")
        )
        if not found <= limit:
            record.faults.append(f"{what}: {found:.1e} apart on this device and the CPU")


if __name__ == "__main__":
    main()
