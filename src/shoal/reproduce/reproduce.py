"""Reproducing tables and figures: run what is missing, then write them out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.data.benchmarks import get_facts
from shoal.distributed import is_main
from shoal.errors import UsageError
from shoal.files import write_text
from shoal.reproduce.cell_results import Result
from shoal.reproduce.experiments import COUNTS, FIGURES, Experiment, get_experiment
from shoal.reproduce.loaded_dataset import count_dataset
from shoal.reproduce.plan import Plan, ReproduceOptions, check_used, make_plan, protocol_suffix
from shoal.reproduce.runner import Runner
from shoal.reproduce.tables import build_table, to_csv, to_latex, to_markdown, to_records


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A table or figure: its files, and the numbers in it."""

    experiment: Experiment
    text: str
    """The table as Markdown, or the names of the figure's files."""
    records: list[dict[str, Any]]
    """A dictionary per number."""
    files: list[Path]
    failures: dict[str, str]
    """The cells of it that failed, by key, and why."""


def reproduce(
    names: Sequence[str],
    roots: Mapping[str, Path | str],
    out: Path | str,
    *,
    device: torch.device,
    seeds: Sequence[int] = (0,),
    options: ReproduceOptions | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Reproduction]:
    """Run tables and figures of the paper and write them into `out`; `roots` are by benchmark.

    What they share is trained once. Finished cells in `out` are read, not run again; so are
    trainings, and an interrupted one is resumed after its last epoch. A training that fails is
    logged and left out of the tables, which say so; with nothing else to show, its error is raised.
    Several processes share every training and clustering; the main one writes, and the others
    return nothing.
    """
    experiments = list({one.name: one for one in map(get_experiment, names)}.values())
    if not roots:
        known = dict.fromkeys(name for experiment in experiments for name in experiment.datasets)
        raise UsageError(f"reproduce: no folder of images; give one of {', '.join(known)}")
    for dataset in roots:
        get_facts(dataset)
    options = options or ReproduceOptions()
    check_used(experiments, options)
    plans = [make_plan(each, _columns(each, roots), seeds, options) for each in experiments]
    folders = {key: Path(root) for key, root in roots.items()}
    runner = Runner(folders, Path(out), device=device, tell=tell)
    try:
        results = runner.run_cells([cell for plan in plans for cell in plan.cells])
    finally:
        runner.close()
    if not is_main():
        return []
    return [_write_out(runner, plan, results) for plan in plans]


def _columns(experiment: Experiment, given: Iterable[str]) -> list[str]:
    """The datasets given, in the order of the paper's columns, then those the paper has not."""
    return sorted(given, key=lambda name: (*experiment.datasets, name).index(name))


def _write_out(runner: Runner, plan: Plan, results: Mapping[str, Result]) -> Reproduction:
    """Write a table or figure from results of cells by key, its own and those of others."""
    keys = {cell.key for cell in plan.cells}
    failures = {key: str(error) for key, error in runner.failed.items() if key in keys}
    if plan.experiment.measure in FIGURES:
        return _write_figures(runner.out, plan, results, failures)
    if plan.experiment.measure in COUNTS:
        results = {dataset: count_dataset(dataset, root) for dataset, root in runner.roots.items()}
    return _write_table(runner.out, plan, results, failures)


def _write_table(
    out: Path, plan: Plan, results: Mapping[str, Result], failures: dict[str, str]
) -> Reproduction:
    table = build_table(plan, results, failures)
    text = to_markdown(table)
    records = to_records(table)
    stem = f"table{plan.experiment.name}{protocol_suffix(plan.options.protocol)}"
    contents = {
        out / f"{stem}.md": text,
        out / f"{stem}.tex": to_latex(table),
        out / f"{stem}.csv": to_csv(records),
    }
    for file, content in contents.items():
        write_text(file, content)
    return Reproduction(
        experiment=plan.experiment,
        text=text,
        records=records,
        files=list(contents),
        failures=failures,
    )


def _write_figures(
    out: Path, plan: Plan, results: Mapping[str, Result], failures: dict[str, str]
) -> Reproduction:
    """One figure per dataset."""
    from shoal.reproduce import figures

    files: list[Path] = []
    records: list[dict[str, Any]] = []
    remarks: list[str] = []
    for dataset in plan.datasets:
        drawing = figures.build_drawing(plan, dataset, results, failures)
        remarks += drawing.remarks
        if not drawing.materials:
            continue
        stem = f"figure_{plan.experiment.name}_{dataset}{protocol_suffix(plan.options.protocol)}"
        numbers = figures.to_records(drawing)
        records += numbers
        files.append(out / f"{stem}.svg")
        write_text(files[-1], figures.to_svg(figures.draw(drawing)))
        if numbers:
            files.append(out / f"{stem}.csv")
            write_text(files[-1], to_csv(numbers))
    return Reproduction(
        experiment=plan.experiment,
        text="\n".join([*map(str, files), *(f"- {remark}" for remark in remarks)]),
        records=records,
        files=files,
        failures=failures,
    )
