"""Accuracy on real images within a budget of minutes: the tables that matter most first, every finished cell kept.

    PYTHONPATH=src python benchmarks/accuracy.py --data DATA --minutes 13 --out results/accuracy
    PYTHONPATH=src python benchmarks/accuracy.py --rehearse        # everything, tiny, on the CPU, in a minute or two

DATA holds cub200-train.zip and cifar100-train.zip (or the official layouts); for --protocol reference, in which hidden
labels of the test part choose snapshot and K, cub200-test.zip and cifar100-test.zip too. The order: CUB's frozen
baseline, GCD and CMS with seed 0 (K given and estimated, and all of Table 4, from one training each), then seeds 1 and
2; the α, k and λ ablations on CUB; CIFAR-100; CMS* of Table 3. A training that would not be done in time, judged by the
longest so far on its dataset, is left out, and the tables show a dash. A second run with the same --out goes on where
the first stopped.

Nothing is tuned here: settings are the default recipes', which benchmarks/tuning.py chose by given labels alone.
--set cms.loss.temperature=0.15 changes one (with a method's name in front, for that method only).

A small network at batch 128 leaves a large GPU waiting for the next kernel, so --workers processes share it, each
taking every n-th training; the seconds of a cell are then those of a shared GPU. The trunk's tokens are made once, kept
in --shared, and used by all. A training that fails is told and left out.
"""

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image

from shoal.data.benchmarks import load_split
from shoal.device import choose_device
from shoal.errors import ShoalError
from shoal.files import make_folder, write_text
from shoal.reproduce.catalog import get_experiment
from shoal.reproduce.experiment import Cell, Options
from shoal.reproduce.reproduce import reproduce_with
from shoal.reproduce.runner import Runner, cells_of, groups_of


@dataclass(frozen=True, kw_only=True)
class Step:
    """Some tables on one dataset, run together so that they share their trainings."""

    dataset: str
    tables: tuple[str, ...]
    seeds: tuple[int, ...]


def steps(seeds: tuple[int, ...]) -> list[Step]:
    """What to run, the most important first."""
    main, first = ("1", "4", "iterations"), seeds[:1]
    return [
        Step(dataset="cub", tables=main, seeds=first),
        *(Step(dataset="cub", tables=("1", "4"), seeds=(seed,)) for seed in seeds[1:]),
        Step(dataset="cub", tables=("11",), seeds=first),
        Step(dataset="cub", tables=("10",), seeds=first),
        Step(dataset="cub", tables=("12",), seeds=first),
        Step(dataset="cifar100", tables=("1",), seeds=first),
        Step(dataset="cub", tables=("3",), seeds=first),
        Step(dataset="cifar100", tables=("3",), seeds=first),
    ]


SHOWN: dict[str, tuple[str, ...]] = {
    "cub": ("1", "3", "4", "8", "10", "11", "12", "iterations"),
    "cifar100": ("1", "3"),
}
"""Tables printed in the end; those that were not run as a whole show dashes. Table 8 comes from cells of Table 1."""

ALL_SEEDS = ("1", "4", "8")
"""Tables shown over all seeds; the others over the first, so that their rows can be compared."""


def main() -> None:
    chosen = _arguments()
    began = time.monotonic()
    if chosen.rehearse:
        _make_tiny(chosen)
    device = choose_device("cpu" if chosen.rehearse else chosen.device)
    if chosen.worker is not None or chosen.workers == 1:
        _work(chosen, device, began)
    else:
        _share(chosen, device, began)
    if chosen.worker is not None:
        return
    texts = _tables(chosen, device)
    minutes = (time.monotonic() - began) / 60
    write_text(chosen.out / "summary.md", _summary(texts, chosen, device, minutes))
    print((chosen.out / "summary.md").read_text())


def _share(chosen: argparse.Namespace, device: torch.device, began: float) -> None:
    """Run the trunk for all, start this script once per worker, and wait; what is left undone, the next call does."""
    make_folder(chosen.shared)
    for name, options in _options(chosen).items():
        runner = _runner(name, chosen, device, 0.0, began)
        cells = [cell for step in steps(tuple(chosen.seeds)) if step.dataset == name for cell in _cells(step, options)]
        for cell in {_trunk_key(cell): cell for cell in cells if name in chosen.datasets}.values():
            runner.stage(cell).task(cell)
        runner.close()
        _say(f"{name}: tokens are there", began)
    own = [sys.executable, *sys.argv]
    threads = str(max(1, (os.cpu_count() or 1) // chosen.workers))
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    workers = [subprocess.Popen([*own, "--worker", str(i)], env=environment) for i in range(chosen.workers)]
    for i, worker in enumerate(workers):
        if worker.wait() != 0:
            print(f"worker {i} ended with {worker.returncode}: its other trainings are missing", file=sys.stderr)


def _trunk_key(cell: Cell) -> str:
    """Cells with equal ones share the trunk's tokens; those that train nothing need none."""
    settings = cell.settings
    seed = settings.training.seed if hasattr(settings, "training") else None
    return f"{settings.encoder} {getattr(settings, 'n_tail_blocks', None)} {settings.input_size} {seed}"


def _work(chosen: argparse.Namespace, device: torch.device, began: float) -> None:
    """Run every n-th training, in order of importance, until time is up."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # shapes never change, so the search pays off after a few steps
    until, options = began + 60 * chosen.minutes, _options(chosen)
    runners = {name: _runner(name, chosen, device, until, began) for name in options}
    wanted = [step for step in steps(tuple(chosen.seeds)) if step.dataset in chosen.datasets]
    groups = groups_of(cell for step in wanted for cell in _cells(step, options[step.dataset]))
    for group in groups[chosen.worker or 0 :: chosen.workers]:
        for name, runner in runners.items():
            if name != group[0].dataset:
                runner.close()  # one dataset at a time in the memory of the device
        try:
            runners[group[0].dataset].run_cells(group)
        except ShoalError as error:
            _say(f"failed: {group[0].key}: {error}", began)
    for runner in runners.values():
        runner.close()


def _options(chosen: argparse.Namespace) -> dict[str, Options]:
    """CUB as the recipe says; CIFAR-100, eight times as many images, smaller and shorter."""
    extra = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in chosen.set)}
    if chosen.rehearse:
        extra |= {"training.batch_size": 64, "head.width": 32, "head.dim": 16, "head.bottleneck": 8}
    sizes = {"cub": chosen.input_size, "cifar100": chosen.cifar_input_size}
    epochs = {"cub": chosen.epochs, "cifar100": chosen.cifar_epochs}
    return {
        name: Options(
            encoder=chosen.encoder,
            input_size=sizes[name],
            changes={"training.epochs": epochs[name], **extra},
            validation_share=chosen.validation_share,
            protocol=chosen.protocol,
        )
        for name in sizes
    }


def _runner(name: str, chosen: argparse.Namespace, device: torch.device, until: float, began: float) -> Runner:
    who = "" if chosen.worker is None else f"worker {chosen.worker}: "
    return Runner(
        {name: chosen.data},
        chosen.out / name,
        device=device,
        until=until,
        shared=chosen.shared if chosen.workers > 1 else None,
        tell=lambda text: _say(who + text, began),
    )


def _cells(step: Step, options: Options) -> list[Cell]:
    return [
        cell for table in step.tables for cell in cells_of(get_experiment(table), [step.dataset], step.seeds, options)
    ]


def _tables(chosen: argparse.Namespace, device: torch.device) -> list[str]:
    """Write and return the tables, from the cells that are there; nothing is run."""
    texts = []
    for name, options in _options(chosen).items():
        runner = Runner({name: chosen.data}, chosen.out / name, device=device, until=0.0)
        for table in SHOWN[name] if name in chosen.datasets else ():
            is_main = name == "cub" and table in ALL_SEEDS
            seeds = chosen.seeds if is_main else chosen.seeds[:1]
            found = reproduce_with(runner, get_experiment(table), seeds, options)
            if any(record["ours"] is not None for record in found.records):
                texts.append(found.text)
    return texts


def _summary(texts: list[str], chosen: argparse.Namespace, device: torch.device, minutes: float) -> str:
    cells = [json.loads(file.read_text()) for file in sorted(chosen.out.glob("*/cells/*.json"))]
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
    lines = [
        f"`{' '.join(['python', *sys.argv])}`",
        "",
        f"{machine}, torch {torch.__version__}, {chosen.workers} worker(s), {minutes:.1f} minutes in this call, "
        f"{len(cells)} cells in all.",
        "",
        *texts,
        "| dataset | method | clustering | K | seed | changed | All / Known / Novel | K found | validation | epoch | "
        "s training | s clustering |",
        "|---" * 12 + "|",
        *(_line(cell) for cell in cells if "accuracy" in cell),
    ]
    return "\n".join(lines) + "\n"


def _line(result: dict) -> str:
    cell, accuracy = result["cell"], result["accuracy"]
    settings = cell["settings"]
    shift, loss = settings["inference"]["shift"], settings.get("loss", {})
    changed = f"α {shift['alpha']:.3g}, k {shift['n_neighbors']}, λ {loss.get('supervised_weight', '–')}"
    values = [
        cell["dataset"],
        cell["method"],
        cell["clustering"] + (" (K in selection)" if cell["selection"] == "given" else ""),
        cell["n_clusters"],
        settings.get("training", {}).get("seed", "–"),
        changed if cell["method"] == "cms" else "–",
        " / ".join(f"{accuracy[name]:.1f}" for name in ("all", "known", "novel")),
        result["n_clusters"],
        result["validation"].get("accuracy", "–"),
        result["epoch"],
        result["seconds_training"],
        result["seconds_clustering"],
    ]
    return f"| {' | '.join(map(str, values))} |"


def _say(text: str, began: float) -> None:
    print(f"[{(time.monotonic() - began) / 60:5.2f} min] {text}", file=sys.stderr, flush=True)


def _make_tiny(chosen: argparse.Namespace) -> None:
    """Replace images, encoder and epochs by tiny ones: the rehearsal shows that everything runs, not how well."""
    folder = chosen.out / "rehearsal"
    torch.set_num_threads(1)
    if chosen.worker is None:
        (folder / "vit").mkdir(parents=True, exist_ok=True)
        _save_tiny_encoder(folder / "vit")
        _drawings(folder)
    chosen.encoder, chosen.data = str(folder / "vit"), folder
    chosen.epochs = chosen.cifar_epochs = 1
    chosen.input_size = chosen.cifar_input_size = 32


def _save_tiny_encoder(folder: Path) -> None:
    from shoal.encoders.hub import import_transformers

    transformers = import_transformers()
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **shape)).save_pretrained(folder)
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(colours))


def _drawings(folder: Path) -> None:
    """Archives of both benchmarks with a few noisy patterns of each class, for the rehearsal."""
    rng = np.random.default_rng(0)
    for name, archive, n_each in (("cub", "cub200", 3), ("cifar100", "cifar100", 5)):
        classes = load_split(name).class_names
        assert classes is not None
        patterns = np.kron(rng.integers(0, 256, size=(len(classes), 8, 8, 3)), np.ones((1, 8, 8, 1), dtype=np.int64))
        for part in ("train", "test"):
            with zipfile.ZipFile(folder / f"{archive}-{part}.zip", "w") as file:
                for title, pattern in zip(classes, patterns, strict=True):
                    for i in range(n_each):
                        noise = rng.integers(-60, 61, size=(64, 64, 3))
                        buffer = io.BytesIO()
                        Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
                        file.writestr(f"{part}/{title}/{i:04d}.png", buffer.getvalue())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with the archives")
    parser.add_argument("--out", type=Path, default=Path("accuracy"), help="folder for cells and tables")
    parser.add_argument("--minutes", type=float, default=13.0, help="no training is begun that would end later")
    parser.add_argument("--encoder", default="efficientnet-lite2")
    parser.add_argument("--datasets", nargs="+", default=["cub", "cifar100"], choices=["cub", "cifar100"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--cifar-epochs", type=int, default=8)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--cifar-input-size", type=int, default=128)
    parser.add_argument("--validation-share", type=float, default=0.2)
    parser.add_argument(
        "--protocol", default="paper", choices=["paper", "reference"], help="who chooses snapshot and K"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings for every row")
    parser.add_argument("--device", default=None)
    parser.add_argument("--workers", type=int, default=3, help="processes that share the device")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--shared", type=Path, default=Path("/dev/shm/shoal-accuracy"), help="tokens for all workers")
    parser.add_argument("--rehearse", action="store_true", help="tiny drawings and encoder on the CPU, one epoch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
