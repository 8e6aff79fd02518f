"""Two processes compute a table with the numbers of one process, and write it once."""

import json
from pathlib import Path

import pytest

from several_processes import end_first, finish_processes, start_nodes, start_processes

SCRIPT = """
import sys, torch
from reproduce.conftest import OPTIONS, make_tiny_encoder, read_stand_in
from shoal.distributed import processes
from shoal.methods import method
from shoal.reproduce import loaded_dataset, runner
from shoal.reproduce.runner import reproduce

for module in (method, runner):
    module.load_encoder = make_tiny_encoder
loaded_dataset.read_benchmark = read_stand_in
cpu = torch.device("cpu")
with processes(cpu):
    found = reproduce({tables!r}, {{"cub": "nowhere"}}, {out!r}, device=cpu, options=OPTIONS)
print([len(each.failures) for each in found])
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["one machine", "two nodes"])
def test_two_processes_fill_a_table_with_the_numbers_of_one(
    run, where: str, tmp_path: Path
) -> None:
    """Table 1 trains and clusters; table 2 also embeds images that are not used in training."""
    tables = ["1", "2"]
    code = SCRIPT.format(tables=tables, out=str(tmp_path / "two"))
    started = start_processes(code) if where == "one machine" else start_nodes(code, tmp_path)
    for name in tables:
        run(name, out=tmp_path / "one")
    assert sorted(output.strip() for output in finish_processes(started)) == ["[0, 0]", "[]"]
    files = sorted(file.name for file in (tmp_path / "one" / "cells").iterdir())
    assert files == sorted(file.name for file in (tmp_path / "two" / "cells").iterdir())
    for file in files:
        one, two = (
            json.loads((tmp_path / name / "cells" / file).read_text()) for name in ("one", "two")
        )
        assert one["n_clusters"] == two["n_clusters"], file
        assert one["accuracy"] == pytest.approx(two["accuracy"], abs=2.0), (
            file
        )  # training adds in another order
    assert (tmp_path / "two" / "table1.md").is_file()


DYING = """
import os, signal
from shoal.training.trainer import Trainer
run_epoch = Trainer.run_epoch

def die(self, *given):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return run_epoch(self, *given)

Trainer.run_epoch = die
"""


@pytest.mark.slow
def test_a_process_that_dies_ends_the_other_and_the_table_is_filled_by_one(
    run, tmp_path: Path
) -> None:
    code, _ = end_first(
        start_processes(DYING + SCRIPT.format(tables=["1"], out=str(tmp_path / "two")))
    )
    assert code == 1
    found = run("1", out=tmp_path / "two")
    assert not found.failures
