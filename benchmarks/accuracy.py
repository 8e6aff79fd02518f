"""Accuracy on real images within a budget of minutes: the tables that matter most first, every finished cell kept.

    PYTHONPATH=src python benchmarks/accuracy.py --data DATA --datasets cub --workers 8 --minutes 9 --out runs/cub
    PYTHONPATH=src python benchmarks/accuracy.py --data DATA --datasets cifar100 --seeds 0 --minutes 8 --out runs/cifar
    PYTHONPATH=src python benchmarks/accuracy.py --rehearse        # everything, tiny, on the CPU, in a minute or two
    PYTHONPATH=src python benchmarks/accuracy.py --data DATA --per-class 20 --epochs 1 --cifar-epochs 1   # real images

DATA holds cub200-train.zip and cifar100-train.zip (or the official layouts); for --protocol reference, in which hidden
labels of the test part choose snapshot and K, cub200-test.zip and cifar100-test.zip too. The order: CUB's frozen
baseline, GCD and CMS with seed 0 (K given and estimated, and all of Table 4, from one training each), then seeds 1 and
2; CMS* of Table 3; the inductive Table 2, which needs cub200-test.zip, and retrieval, Table 8; the α, k and λ
ablations on CUB, seed by seed; the main rows, CMS*, unseen images and retrieval on CIFAR-100, with the first seed. A
training that would not be done in time, judged by the longest so far on its dataset, is left out, and tables show a
dash. A second run with the same --out goes on where the first stopped.

CIFAR-100 has eight times as many images as CUB, so it is trained for fewer epochs (8, which is still 2.7 times as many
steps as CUB's 25) with a smaller pool of views (8: a view is then drawn twice on average, on CUB three times). GCD and
CMS have the same of both.

Nothing is tuned here: settings are the default recipes', most of them chosen by given labels (benchmarks/tuning.py).
--set cms.loss.temperature=0.15 changes one (with a method's name in front, for that method only).

A small network at batch 128 leaves a large GPU waiting for the next kernel, so --workers processes share it, each
taking the next training that nobody has; the seconds of a cell are then those of a shared GPU. Pixels and the trunk's
tokens are made once, kept in a folder of their own in --shared while the call lasts, and used by all. A training that
fails is told and left out. --trainings FOLDER keeps every training epoch by epoch, so that one that is cut off goes on
in the next call, and a finished one serves cells of other tables.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rehearsal import make_tiny, take_few
from shoal.device import choose_device
from shoal.errors import ShoalError
from shoal.files import make_folder, write_text
from shoal.methods.setting_changes import read_changes
from shoal.reproduce.experiment import ReproduceOptions, check_used
from shoal.reproduce.paper_experiments import get_experiment
from shoal.reproduce.plan import Cell, make_plan
from shoal.reproduce.reproduce import reproduce_with
from shoal.reproduce.runner import Runner, groups_of


@dataclass(frozen=True, kw_only=True)
class Step:
    """Some tables on one dataset, run together so that they share their trainings."""

    dataset: str
    tables: tuple[str, ...]
    seeds: tuple[int, ...]


def steps(seeds: tuple[int, ...]) -> list[Step]:
    """What to run, the most important first."""
    main = ("1", "4", "iterations")
    first = seeds[:1]
    return [
        Step(dataset="cub", tables=main, seeds=first),
        *(Step(dataset="cub", tables=("1", "4"), seeds=(seed,)) for seed in seeds[1:]),
        *(Step(dataset="cub", tables=("3",), seeds=(seed,)) for seed in seeds),
        *(Step(dataset="cub", tables=("2", "8"), seeds=(seed,)) for seed in seeds),
        *(
            Step(dataset="cub", tables=(table,), seeds=(seed,))
            for seed in seeds
            for table in ("13", "12", "14")
        ),
        Step(dataset="cifar100", tables=("1", "4"), seeds=first),
        Step(dataset="cifar100", tables=("3",), seeds=first),
        Step(dataset="cifar100", tables=("2", "8"), seeds=first),
    ]


SHOWN: dict[str, tuple[str, ...]] = {
    "cub": ("1", "2", "3", "4", "8", "12", "13", "14", "iterations"),
    "cifar100": ("1", "2", "3", "4", "8"),
}
"""Tables printed in the end; those not run as a whole show dashes."""

EXPECTED_S = {"cub": 110.0, "cifar100": 180.0}
"""How long a training is taken to last before one has been seen: CUB's longest on an H200 shared by eight, and for
CIFAR-100 a guess on the safe side."""

FIRST_SEED = ("iterations",)
"""What is shown over the first seed of CUB; the others over all."""


def main() -> None:
    chosen = _arguments()
    try:
        check(chosen)
        run(chosen)
    except ShoalError as error:
        print(f"accuracy.py: error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def check(chosen: argparse.Namespace) -> None:
    """Refuse tables and settings that nothing can be run with, before anything is written."""
    wanted = [step for step in steps(tuple(chosen.seeds)) if step.dataset in chosen.datasets]
    tables = chosen.tables or list(dict.fromkeys(table for step in wanted for table in step.tables))
    check_used(
        [get_experiment(table) for table in tables],
        ReproduceOptions(changes=read_changes(chosen.set), methods=tuple(chosen.methods)),
    )
    _wanted(chosen)


def run(chosen: argparse.Namespace) -> None:
    """Do all trainings that there is time for, and write the tables."""
    began = time.monotonic() - chosen.elapsed
    if chosen.rehearse:
        make_tiny(chosen)
    elif chosen.per_class is not None and chosen.worker is None:
        take_few(chosen)
    device = choose_device("cpu" if chosen.rehearse else chosen.device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = (
            True  # shapes never change, so the search pays off after a few steps
        )
    if chosen.worker is not None:
        _work(chosen, device, began)
        return
    _note_begin(chosen, device)
    with tempfile.TemporaryDirectory(dir=_made(chosen.shared)) as shared:
        chosen.shared = Path(shared)
        _share(chosen, device, began)
    texts = _tables(chosen, device)
    _note_end(chosen, (time.monotonic() - began) / 60)
    write_text(chosen.out / "summary.md", _summary(texts, chosen))
    print((chosen.out / "summary.md").read_text())


def _share(chosen: argparse.Namespace, device: torch.device, began: float) -> None:
    """Decode and run the trunk for all, start this script once per worker, and wait."""
    for name in chosen.datasets:
        runner = _runner(name, chosen, device, 0.0, began)
        missing = [
            cell
            for cell in _wanted(chosen)
            if cell.dataset == name and not runner.file(cell).exists()
        ]
        for cell in {_trunk_key(cell): cell for cell in missing}.values():
            runner.dataset_of(cell).task(cell)
        runner.close()
        _say(
            f"{name}: {len(groups_of(missing))} trainings to do, their images and tokens are there",
            began,
        )
    if device.type == "cuda":
        torch.cuda.empty_cache()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // chosen.workers)),
    }
    for i, worker in enumerate(
        [_start(i, chosen, began, environment) for i in range(chosen.workers)]
    ):
        if worker.wait() != 0:
            print(
                f"worker {i} ended with {worker.returncode}: its trainings are missing",
                file=sys.stderr,
            )


def _start(
    i: int, chosen: argparse.Namespace, began: float, environment: dict[str, str]
) -> "subprocess.Popen[bytes]":
    elapsed = time.monotonic() - began  # the limit of minutes is the call's, not the worker's
    more = [
        "--worker",
        str(i),
        "--shared",
        str(chosen.shared),
        "--data",
        str(chosen.data),
        "--elapsed",
        str(elapsed),
    ]
    return subprocess.Popen([sys.executable, *sys.argv, *more], env=environment)


def _trunk_key(cell: Cell) -> str:
    """Cells with equal ones share the trunk's tokens; those that train nothing need none."""
    settings = cell.settings
    if not hasattr(settings, "training"):
        return settings.encoder
    views = settings.training.views
    seed = settings.training.seed
    return f"{settings.encoder} {settings.n_tail_blocks} {settings.input_size} {views} {seed}"


def _work(chosen: argparse.Namespace, device: torch.device, began: float) -> None:
    """Run the next training that nobody has, in order of importance, until all are taken or time is up."""
    until = began + 60 * chosen.minutes
    runners = {name: _runner(name, chosen, device, until, began) for name in chosen.datasets}
    for group in groups_of(_wanted(chosen)):
        runner = runners[group[0].dataset]
        if all(runner.file(cell).exists() for cell in group) or not _claim(group, chosen.shared):
            continue
        for other in runners.values():
            if other is not runner:
                other.close()  # one dataset at a time in the memory of the device
        try:
            runner.run_cells(group)
        except ShoalError as error:
            _say(f"failed: {group[0].key}: {error}", began)
    for runner in runners.values():
        runner.close()


def _claim(group: list[Cell], shared: Path) -> bool:
    """Take a training, unless another worker of this call has it."""
    try:
        (shared / f"claim-{group[0].training_key}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _wanted(chosen: argparse.Namespace) -> list[Cell]:
    """All cells of the chosen datasets, the most important first."""
    options = _options(chosen)
    wanted = [step for step in steps(tuple(chosen.seeds)) if step.dataset in chosen.datasets]
    return [cell for step in wanted for cell in _cells(step, options[step.dataset], chosen.tables)]


def _options(chosen: argparse.Namespace) -> dict[str, ReproduceOptions]:
    """CUB as the recipe says; CIFAR-100, eight times as many images, for fewer epochs and with fewer views."""
    extra = read_changes(chosen.set)
    if chosen.rehearse:
        extra |= {"training.batch_size": 64, "head.width": 32, "head.dim": 16, "head.bottleneck": 8}
    sizes = {"cub": chosen.input_size, "cifar100": chosen.cifar_input_size}
    budgets: dict[str, dict[str, Any]] = {
        "cub": {"training.epochs": chosen.epochs},
        "cifar100": {"training.epochs": chosen.cifar_epochs},
    }
    if chosen.protocol == "paper":  # the released code cuts new views in every step
        budgets["cifar100"]["training.views.pool"] = chosen.cifar_pool
    return {
        name: ReproduceOptions(
            encoder=chosen.encoder,
            input_size=sizes[name],
            changes=budgets[name] | extra,
            validation_share=chosen.validation_share,
            protocol=chosen.protocol,
            methods=tuple(chosen.methods),
        )
        for name in sizes
    }


def _runner(
    name: str, chosen: argparse.Namespace, device: torch.device, until: float, began: float
) -> Runner:
    who = "" if chosen.worker is None else f"worker {chosen.worker}: "
    runner = Runner(
        {name: chosen.data},
        chosen.out / name,
        device=device,
        until=until,
        shared=chosen.shared,
        trainings=None if chosen.trainings is None else chosen.trainings / name,
        tell=lambda text: _say(who + text, began),
    )
    runner.longest[name] = EXPECTED_S[name]
    return runner


def _cells(step: Step, options: ReproduceOptions, only: list[str] | None) -> list[Cell]:
    tables = [table for table in step.tables if only is None or table in only]
    return [
        cell
        for table in tables
        for cell in make_plan(get_experiment(table), [step.dataset], step.seeds, options).cells
    ]


def _tables(chosen: argparse.Namespace, device: torch.device) -> list[str]:
    """Write and return the tables, from the cells that are there; nothing is run."""
    texts = []
    for name, options in _options(chosen).items():
        runner = Runner({name: chosen.data}, chosen.out / name, device=device, until=0.0)
        for table in _shown(name, chosen):
            seeds = chosen.seeds if name == "cub" and table not in FIRST_SEED else chosen.seeds[:1]
            found = reproduce_with(runner, get_experiment(table), seeds, options)
            if any(record["ours"] is not None for record in found.records):
                texts.append(found.text)
    return texts


def _shown(name: str, chosen: argparse.Namespace) -> list[str]:
    tables = SHOWN[name] if name in chosen.datasets else ()
    return [table for table in tables if chosen.tables is None or table in chosen.tables]


UNFINISHED = "not finished"


def _note_begin(chosen: argparse.Namespace, device: torch.device) -> None:
    """Add this call to the list of calls that filled the folder, so that one that is killed is in it too."""
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
    )
    seeds = ", ".join(map(str, chosen.seeds))
    line = (
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {chosen.commit or _commit()}: "
        f"`{shlex.join(['python', *sys.argv])}`; {machine}, {os.cpu_count()} processors, torch {torch.__version__}, "
        f"Python {platform.python_version()}; protocol '{chosen.protocol}', seeds {seeds}, {chosen.workers} worker(s), "
        f"{UNFINISHED}"
    )
    with (_made(chosen.out) / "calls.md").open("a") as file:
        file.write(line + "\n")


def _note_end(chosen: argparse.Namespace, minutes: float) -> None:
    before, _, after = (chosen.out / "calls.md").read_text().rpartition(UNFINISHED)
    write_text(chosen.out / "calls.md", f"{before}{minutes:.1f} minutes{after}")


def _commit() -> str:
    """The commit that is checked out, and whether files differ from it."""
    ask = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--exclude=*",
    ]
    try:
        found = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        found = ""
    return found.replace("-dirty", " with changes") or "unknown (name it with --commit)"


def _summary(texts: list[str], chosen: argparse.Namespace) -> str:
    cells = [json.loads(file.read_text()) for file in sorted(chosen.out.glob("*/cells/*.json"))]
    few = (
        "drawings"
        if chosen.rehearse
        else f"{chosen.per_class} images per class"
        if chosen.per_class
        else None
    )
    lines = [
        *([] if few is None else [f"**{few.capitalize()}: a rehearsal, no result.**", ""]),
        *(chosen.out / "calls.md").read_text().splitlines(),
        "",
        *texts,
        "| dataset | method | clustering | K | seed | changed | All / Known / Novel | K found | validation | epoch | "
        "images | s training | s clustering |",
        "|---" * 13 + "|",
        *(_line(cell) for cell in cells if "accuracy" in cell),
    ]
    return "\n".join(lines) + "\n"


def _line(result: dict) -> str:
    cell = result["cell"]
    accuracy = result["accuracy"]
    settings = cell["settings"]
    shift = settings["inference"]["shift"]
    loss = settings.get("loss", {})
    changed = (
        f"α {shift['alpha']:.3g}, k {shift['n_neighbors']}, λ {loss.get('supervised_weight', '–')}"
    )
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
        f"{result['epoch']} of {result['epochs']}" if result["epochs"] else "–",
        f"{result['images']:,}",
        result["seconds_training"],
        result["seconds_clustering"],
    ]
    return f"| {' | '.join(map(str, values))} |"


def _made(folder: Path) -> Path:
    make_folder(folder)
    return folder


def _say(text: str, began: float) -> None:
    print(f"[{(time.monotonic() - began) / 60:5.2f} min] {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with the archives")
    parser.add_argument(
        "--out", type=Path, default=Path("accuracy"), help="folder for cells and tables"
    )
    parser.add_argument(
        "--minutes", type=float, default=13.0, help="no training is begun that would end later"
    )
    parser.add_argument("--encoder", default="efficientnet-lite2")
    parser.add_argument(
        "--datasets", nargs="+", default=["cub", "cifar100"], choices=["cub", "cifar100"]
    )
    parser.add_argument(
        "--tables", nargs="+", default=None, metavar="TABLE", help="only these, as in --tables 1 4"
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="METHOD", help="only the rows of these"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--cifar-epochs", type=int, default=8)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--cifar-input-size", type=int, default=224)
    parser.add_argument(
        "--cifar-pool", type=int, default=8, help="views of each image of CIFAR-100"
    )
    parser.add_argument("--validation-share", type=float, default=0.2)
    parser.add_argument(
        "--protocol",
        default="paper",
        choices=["paper", "reference"],
        help="who chooses snapshot and K",
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings for every row"
    )
    parser.add_argument("--device", default=None)
    parser.add_argument("--workers", type=int, default=3, help="processes that share the device")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--elapsed", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument(
        "--shared", type=Path, default=Path("/dev/shm"), help="where workers leave each other files"
    )
    parser.add_argument(
        "--trainings",
        type=Path,
        default=None,
        help="keep trainings here, to go on with one that was cut off",
    )
    parser.add_argument(
        "--commit", default=None, help="the commit to name in the record, where git cannot say it"
    )
    parser.add_argument(
        "--per-class",
        type=int,
        default=None,
        metavar="N",
        help="rehearse with N images of each class",
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="tiny drawings and encoder on the CPU, one epoch"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
