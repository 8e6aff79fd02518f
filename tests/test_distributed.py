"""One process and two gloo processes, started the way torchrun starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal import distributed

SCRIPT = """
import sys, torch
from shoal import distributed as d
with d.processes(torch.device("cpu"), timeout_s=60):
    rows = torch.arange(14.0).reshape(7, 2)
    mine = rows[d.shard(7)]
    gathered = d.gather_rows(mine)
    mean = d.mean_over_processes(torch.tensor([float(d.rank())]))
    said = d.from_main(torch.tensor([float(d.rank()) + 5]))
    d.barrier()
    print(d.rank(), d.world_size(), d.is_main(), len(mine), torch.equal(gathered, rows), mean.item(), said.item())
print(d.is_started())
"""


def run_processes(n: int, tmp_path: Path) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    started = []
    for rank in range(n):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = os.environ | {name: str(value) for name, value in names.items()}
        started.append(subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True))
    return [process.communicate(timeout=120)[0] for process in started]


def test_two_processes_share_rows_and_gather_all_of_them(tmp_path: Path) -> None:
    first, second = run_processes(2, tmp_path)
    assert first.split("\n")[:2] == ["0 2 True 4 True 0.5 5.0", "False"]
    assert second.split("\n")[:2] == ["1 2 False 3 True 0.5 5.0", "False"]


def test_alone_every_call_is_a_no_op() -> None:
    rows = torch.rand(5, 2)
    with distributed.processes(torch.device("cpu")):
        assert not distributed.is_started()
        assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
        assert distributed.gather_rows(rows) is rows
        assert distributed.mean_over_processes(rows) is rows
        assert distributed.from_main(rows) is rows
        distributed.barrier()


@pytest.mark.parametrize("n_rows", [0, 1, 5, 6, 7])
@pytest.mark.parametrize("n_processes", [1, 2, 3, 8])
def test_shards_cover_every_row_once(n_rows: int, n_processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    covered = []
    monkeypatch.setattr(distributed, "world_size", lambda: n_processes)
    for rank in range(n_processes):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        covered += list(range(n_rows))[distributed.shard(n_rows)]
    assert covered == list(range(n_rows))
