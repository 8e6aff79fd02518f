"""Reproducing tables and figures: run what is missing, then write them out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from shoal.data.benchmarks import get_facts
from shoal.distributed import is_main
from shoal.errors import UsageError
from shoal.files import write_text
from shoal.reproduce.cell_results import Result
from shoal.reproduce.experiments import COUNTS, FIGURES, Experiment, get_experiment
from shoal.reproduce.loaded_dataset import count_dataset
from shoal.reproduce.plan import Plan, ReproduceOptions, check_used, make_plan
from shoal.reproduce.runner import Runner
from shoal.reproduce.tables import Record, build_table, to_csv, to_latex, to_markdown


@dataclass(kw_only=True)
class Reproduction:
    """A table or figure: its files, and the numbers in it."""

    experiment: Experiment
    failures: dict[str, str]
    """The cells of it that failed, by key, and why."""
    text: str = ""
    """The table as Markdown, or the names of the figure's files."""
    records: list[Record] = field(default_factory=list)
    """A dictionary per number."""
    files: list[Path] = field(default_factory=list)

    def write(self, file: Path, content: str) -> None:
        """Write one of its files."""
        write_text(file, content)
        self.files.append(file)


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
    plans = []
    for experiment in experiments:
        # In the order of the paper's columns, then those the paper has not.
        columns = sorted(roots, key=lambda name: (*experiment.datasets, name).index(name))
        plans.append(make_plan(experiment, columns, seeds, options))
    folders = {key: Path(root) for key, root in roots.items()}
    runner = Runner(folders, Path(out), device=device, tell=tell or (lambda text: None))
    results = runner.run_cells([cell for plan in plans for cell in plan.cells])
    if not is_main():
        return []
    return [_write_out(runner, plan, results) for plan in plans]


def _write_out(runner: Runner, plan: Plan, results: Mapping[str, Result]) -> Reproduction:
    """Write a table or figure from results of cells by key, its own and those of others."""
    keys = {cell.key for cell in plan.cells}
    failures = {key: str(error) for key, error in runner.failed.items() if key in keys}
    reproduction = Reproduction(experiment=plan.experiment, failures=failures)
    if plan.experiment.measure in FIGURES:
        _write_figures(runner.out, plan, results, reproduction)
        return reproduction
    if plan.experiment.measure in COUNTS:
        counted: dict[str, Result] = {}
        for dataset in plan.datasets:
            counts, notes = count_dataset(dataset, runner.roots[dataset])
            counted[dataset] = {"counts": counts, "notes": notes}
        results = counted
    table = build_table(plan, results, failures)
    reproduction.text = to_markdown(table)
    reproduction.records = table.records
    file = runner.out / f"table{plan.experiment.name}{plan.options.suffix}.md"
    reproduction.write(file, reproduction.text)
    reproduction.write(file.with_suffix(".tex"), to_latex(table))
    reproduction.write(file.with_suffix(".csv"), to_csv(table.records))
    return reproduction


def _write_figures(
    out: Path, plan: Plan, results: Mapping[str, Result], reproduction: Reproduction
) -> None:
    """One figure per dataset."""
    from shoal.reproduce import figures

    remarks: list[str] = []
    for dataset in plan.datasets:
        drawing = figures.build_drawing(plan, dataset, results, reproduction.failures)
        remarks += drawing.remarks
        if not drawing.materials:
            continue
        file = out / f"figure_{plan.experiment.name}_{dataset}{plan.options.suffix}.svg"
        reproduction.write(file, figures.to_svg(figures.draw(drawing)))
        numbers = figures.to_records(drawing)
        if numbers:
            reproduction.records += numbers
            reproduction.write(file.with_suffix(".csv"), to_csv(numbers))
    lines = [*map(str, reproduction.files), *(f"- {remark}" for remark in remarks)]
    reproduction.text = "\n".join(lines)
