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
from shoal.reproduce.cell_files import Result
from shoal.reproduce.experiment import COUNTS, FIGURES, Experiment, ReproduceOptions, check_used
from shoal.reproduce.loaded_dataset import count_dataset
from shoal.reproduce.paper_experiments import get_experiment
from shoal.reproduce.plan import Plan, make_plan, protocol_suffix
from shoal.reproduce.result_table import to_records, to_texts
from shoal.reproduce.runner import Runner
from shoal.reproduce.table_building import build_table


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What was written, and the numbers in it."""

    experiment: Experiment
    text: str
    """The table as Markdown, or the names of the figure's files."""
    records: list[dict[str, Any]]
    """A dictionary per number."""
    files: tuple[Path, ...]
    n_missing: int
    """Rows of a dataset, or figures, that were not run for want of time, or failed."""
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
    """Run tables and figures of the paper on the datasets in `roots` (benchmark -> folder) and write them into `out`.

    What they share is trained once. Finished cells in `out` are read, not run again; so are trainings, one that was cut
    off within goes on from its last epoch. A training that fails is told and left out of the tables, which say so; with
    nothing else to show, its error is raised. Several processes share every training and clustering; the main one
    writes, and the others return nothing.
    """
    experiments = list({one.name: one for one in map(get_experiment, names)}.values())
    if not roots:
        known = dict.fromkeys(
            dataset for experiment in experiments for dataset in experiment.datasets
        )
        raise UsageError(f"reproduce: no folder of images; give one of {', '.join(known)}")
    for dataset in roots:
        get_facts(dataset)
    options = options or ReproduceOptions()
    folder = Path(out)
    check_used(experiments, options)
    plans = [make_plan(each, _columns(each, roots), seeds, options) for each in experiments]
    folders = {key: Path(root) for key, root in roots.items()}
    runner = Runner(folders, folder, device=device, trainings=folder / "trainings", tell=tell)
    try:
        results = runner.run_cells([cell for plan in plans for cell in plan.cells])
    finally:
        runner.close()
    return [_write_out(runner, plan, results) for plan in plans] if is_main() else []


def reproduce_with(
    runner: Runner, experiment: Experiment, seeds: Sequence[int], options: ReproduceOptions
) -> Reproduction:
    """As `reproduce`, with a runner whose images other experiments share."""
    plan = make_plan(experiment, _columns(experiment, runner.roots), seeds, options)
    return _write_out(runner, plan, runner.run_cells(plan.cells))


def _columns(experiment: Experiment, given: Iterable[str]) -> list[str]:
    """The datasets given, in the order of the paper's columns, then those that the paper has not."""
    return sorted(given, key=lambda name: (*experiment.datasets, name).index(name))


def _write_out(runner: Runner, plan: Plan, results: Mapping[str, Result]) -> Reproduction:
    """Write a table or figure from results of cells by key, its own and those of others."""
    if plan.experiment.measure in COUNTS:
        results = {dataset: count_dataset(dataset, root) for dataset, root in runner.roots.items()}
    keys = {cell.key for cell in plan.cells}
    failures = {key: str(error) for key, error in runner.failed.items() if key in keys}
    write = _write_figures if plan.experiment.measure in FIGURES else _write_table
    return write(runner.out, plan, results, failures)


def _write_table(
    out: Path, plan: Plan, results: Mapping[str, Mapping[str, Any]], failures: dict[str, str]
) -> Reproduction:
    table = build_table(plan, results, failures)
    experiment = plan.experiment
    contents = to_texts(table)
    stem = f"table{experiment.name}{protocol_suffix(plan.options.protocol)}"
    expected = len(plan.datasets) if experiment.measure in COUNTS else len(plan.grid)
    has_ours = {key for key, entries in table.entries.items() if entries[0].n_seeds}
    return Reproduction(
        experiment=experiment,
        text=contents[".md"],
        records=to_records(table),
        files=_write(out, stem, contents),
        n_missing=expected - len(has_ours),
        failures=failures,
    )


def _write_figures(
    out: Path, plan: Plan, results: Mapping[str, Mapping[str, Any]], failures: dict[str, str]
) -> Reproduction:
    """One figure per dataset."""
    from shoal.reproduce import figures

    drawings = [
        figures.build_drawing(plan, dataset, results, failures) for dataset in plan.datasets
    ]
    files: list[Path] = []
    for drawing in drawings:
        if drawing.materials:
            contents = {
                ".svg": figures.to_svg(figures.draw(drawing)),
                ".csv": figures.to_csv(drawing),
            }
            stem = f"figure_{plan.experiment.name}_{drawing.dataset}{protocol_suffix(plan.options.protocol)}"
            files += _write(out, stem, contents)
    return Reproduction(
        experiment=plan.experiment,
        text="\n".join(
            [*map(str, files), *(f"- {note}" for drawing in drawings for note in drawing.remarks)]
        ),
        records=[record for drawing in drawings for record in figures.to_records(drawing)],
        files=tuple(files),
        n_missing=sum(not drawing.materials for drawing in drawings),
        failures=failures,
    )


def _write(out: Path, stem: str, contents: Mapping[str, str]) -> tuple[Path, ...]:
    """Write what is not empty, each under its ending."""
    files = {out / f"{stem}{suffix}": text for suffix, text in contents.items() if text}
    for file, text in files.items():
        write_text(file, text)
    return tuple(files)
