"""Accuracy on real images within a budget of minutes: the tables that matter most first, every finished cell kept.

    PYTHONPATH=src python benchmarks/accuracy.py --data DATA --minutes 13 --out results/accuracy
    PYTHONPATH=src python benchmarks/accuracy.py --rehearse        # everything, tiny, on the CPU, in a minute or two

DATA holds cub200-train.zip and cifar100-train.zip (or the official layouts). The order: CUB's frozen baseline, GCD and
CMS with seed 0 (K given and estimated, and all of Table 4, from one training each), then seeds 1 and 2; the α, k and λ
ablations on CUB; CIFAR-100; CMS* of Table 3. A training that would not be done in time, judged by the longest so far on
its dataset, is left out, and the tables show a dash. A second run with the same --out goes on where the first stopped.
"""

import argparse
import io
import json
import platform
import sys
import tempfile
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
from shoal.files import write_text
from shoal.reproduce.catalog import get_experiment
from shoal.reproduce.experiment import Cell, Options
from shoal.reproduce.reproduce import reproduce_with
from shoal.reproduce.runner import Runner, cells_of


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


def main() -> None:
    chosen = _arguments()
    began = time.monotonic()
    seeds = tuple(chosen.seeds)
    until = began + 60 * chosen.minutes
    if chosen.rehearse:
        _make_tiny(chosen, Path(tempfile.mkdtemp()))
    options = _options(chosen)
    device = choose_device("cpu" if chosen.rehearse else chosen.device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # shapes never change, so the search pays off after a few steps
    _say(f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}", began)
    runners = {name: _runner(name, chosen.data, chosen.out, device, until, began) for name in options}
    for step in steps(seeds):
        if step.dataset in chosen.datasets:
            others = [runner for name, runner in runners.items() if name != step.dataset]
            for runner in others:
                runner.close()  # one dataset at a time in the memory of the device
            runners[step.dataset].run_cells(_cells(step, options[step.dataset]))
    for runner in runners.values():
        runner.close()
    texts = _tables(runners, seeds, options, chosen.datasets)
    minutes = (time.monotonic() - began) / 60
    write_text(chosen.out / "summary.md", _summary(texts, chosen.out, device, minutes))
    print((chosen.out / "summary.md").read_text())


def _options(chosen: argparse.Namespace) -> dict[str, Options]:
    """CUB as the recipe says; CIFAR-100, eight times as many images, smaller and shorter."""
    extra = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in chosen.set)}
    if chosen.rehearse:
        extra |= {"training.batch_size": 64, "head.width": 32, "head.dim": 16}
    sizes = {"cub": chosen.input_size, "cifar100": chosen.cifar_input_size}
    epochs = {"cub": chosen.epochs, "cifar100": chosen.cifar_epochs}
    return {
        name: Options(
            encoder=chosen.encoder,
            input_size=sizes[name],
            changes={"training.epochs": epochs[name], **extra},
            validation_share=chosen.validation_share,
        )
        for name in sizes
    }


def _runner(name: str, data: Path, out: Path, device: torch.device, until: float, began: float) -> Runner:
    return Runner({name: data}, out / name, device=device, until=until, tell=lambda text: _say(text, began))


def _cells(step: Step, options: Options) -> list[Cell]:
    return [
        cell for table in step.tables for cell in cells_of(get_experiment(table), [step.dataset], step.seeds, options)
    ]


def _tables(
    runners: dict[str, Runner], seeds: tuple[int, ...], options: dict[str, Options], datasets: list[str]
) -> list[str]:
    """Write and return the tables, from the cells that are there."""
    texts = []
    for name, runner in runners.items():
        runner.until = 0.0  # nothing more is run
        runner.tell = lambda text: None
        for table in SHOWN[name] if name in datasets else ():
            found = reproduce_with(runner, get_experiment(table), seeds, options[name])
            if any(record["ours"] is not None for record in found.records):
                texts.append(found.text)
    return texts


def _summary(texts: list[str], out: Path, device: torch.device, minutes: float) -> str:
    cells = [json.loads(file.read_text()) for file in sorted(out.glob("*/cells/*.json"))]
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
    lines = [
        f"`{' '.join(['python', *sys.argv])}`",
        "",
        f"{machine}, torch {torch.__version__}, {minutes:.1f} minutes in this call, {len(cells)} cells in all.",
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


def _make_tiny(chosen: argparse.Namespace, folder: Path) -> None:
    """Replace images, encoder and epochs by tiny ones: the rehearsal shows that everything runs, not how well."""
    from shoal.encoders.hub import import_transformers

    torch.set_num_threads(1)
    transformers = import_transformers()
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **shape))
    model.save_pretrained(folder / "vit")
    chosen.encoder, chosen.data = str(folder / "vit"), _drawings(folder)
    chosen.epochs = chosen.cifar_epochs = 1
    chosen.input_size = chosen.cifar_input_size = 32


def _drawings(folder: Path) -> Path:
    """Archives of both benchmarks with a few noisy patterns of each class, for the rehearsal."""
    rng = np.random.default_rng(0)
    for name, archive, n_each in (("cub", "cub200-train.zip", 3), ("cifar100", "cifar100-train.zip", 5)):
        classes = load_split(name).class_names
        assert classes is not None
        with zipfile.ZipFile(folder / archive, "w") as file:
            for title in classes:
                pattern = np.kron(rng.integers(0, 256, size=(8, 8, 3)), np.ones((8, 8, 1), dtype=np.int64))
                for i in range(n_each):
                    noise = rng.integers(-60, 61, size=(64, 64, 3))
                    buffer = io.BytesIO()
                    Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
                    file.writestr(f"train/{title}/{i:04d}.png", buffer.getvalue())
    return folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with the archives")
    parser.add_argument("--out", type=Path, default=Path("accuracy"), help="folder for cells and tables")
    parser.add_argument("--minutes", type=float, default=13.0, help="no training is begun that would end later")
    parser.add_argument("--encoder", default="efficientnet-lite2")
    parser.add_argument("--datasets", nargs="+", default=["cub", "cifar100"], choices=["cub", "cifar100"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--cifar-epochs", type=int, default=8)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--cifar-input-size", type=int, default=128)
    parser.add_argument("--validation-share", type=float, default=0.2)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings for every row")
    parser.add_argument("--device", default=None)
    parser.add_argument("--rehearse", action="store_true", help="tiny drawings and encoder on the CPU, one epoch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
