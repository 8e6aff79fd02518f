"""Reproduce tables of the paper: run the missing cells, then write the tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.data.benchmarks import BENCHMARKS, get_facts
from shoal.distributed import is_main
from shoal.errors import UsageError
from shoal.files import write_text
from shoal.reproduce.experiments import get_experiment
from shoal.reproduce.plan import Plan, ReproduceOptions, check_changes, make_plan
from shoal.reproduce.runner import Runner
from shoal.reproduce.tables import Record, Result, build_table
from shoal.runs import csv_text


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A reproduced table: its text, its files, and the numbers in it."""

    failures: dict[str, str]
    """Error messages of its failed cells, by key."""
    text: str
    records: list[Record]
    files: list[Path]


def reproduce(
    names: Sequence[str],
    roots: Mapping[str, Path | str],
    out: Path | str,
    *,
    device: torch.device,
    seeds: Sequence[int] = (0,),
    options: ReproduceOptions,
    log: Callable[[str], None] | None = None,
) -> list[Reproduction]:
    """Run tables of the paper on benchmarks in `roots` and write them into `out`.

    What they share is trained once. Finished cells and training runs in `out` are used, and an
    interrupted one is resumed. A training run that fails is logged and left out of the tables; if
    there is no result at all, its error is raised. Several processes share every training run and
    clustering; the main one writes, and the others return an empty list.
    """
    experiments = [get_experiment(name, options.methods) for name in dict.fromkeys(names)]
    if not roots:
        raise UsageError(f"reproduce: no --root DATASET=FOLDER; datasets: {', '.join(BENCHMARKS)}")
    for dataset in roots:
        get_facts(dataset)
    check_changes(experiments, options)
    plans = []
    for experiment in experiments:
        # In the order of the paper's columns, then datasets that the paper does not have.
        columns = sorted(roots, key=lambda name: (*experiment.datasets, name).index(name))
        plans.append(make_plan(experiment, columns, seeds, options))
    runner = Runner(roots=roots, out=Path(out), device=device, log=log or (lambda text: None))
    results = runner.run_cells([cell for plan in plans for cell in plan.cells])
    if not is_main():
        return []
    return [_write(runner, plan, results) for plan in plans]


def _write(runner: Runner, plan: Plan, results: Mapping[str, Result]) -> Reproduction:
    keys = {cell.key for cell in plan.cells}
    failures = {key: str(error) for key, error in runner.failed.items() if key in keys}
    text, records = build_table(plan, results, failures)
    name = f"table{plan.experiment.name}"
    if plan.options.protocol != "paper":
        name += f"_{plan.options.protocol}"
    files = [runner.out / f"{name}.md", runner.out / f"{name}.csv"]
    write_text(files[0], text)
    write_text(files[1], csv_text(list(records[0]), [list(record.values()) for record in records]))
    return Reproduction(failures=failures, text=text, records=records, files=files)
