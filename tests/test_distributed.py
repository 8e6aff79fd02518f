"""One process and two gloo processes, started the way torchrun starts them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from several_processes import finish_processes, start_processes
from shoal import distributed
from shoal.errors import ShoalError

SCRIPT = """
import sys, torch
from shoal import distributed as d
with d.processes(torch.device("cpu")):
    rows = torch.arange(14.0).reshape(7, 2)
    mine = rows[d.shard(7)]
    gathered = d.gather_rows(mine)
    total = d.sum_over_processes(torch.tensor([float(d.rank())]))
    d.barrier()
    same = torch.equal(gathered, rows)
    print(d.rank(), d.world_size(), d.is_main(), len(mine), same, total.item())
print(d.is_started())
"""


@pytest.mark.slow
def test_two_processes_share_rows_and_gather_all_of_them() -> None:
    first, second = finish_processes(start_processes(SCRIPT))
    assert first.split("\n")[:2] == ["0 2 True 4 True 1.0", "False"]
    assert second.split("\n")[:2] == ["1 2 False 3 True 1.0", "False"]


TAKING = """
import torch
from shoal import distributed as d
with d.processes(torch.device("cpu")):
    rows = torch.arange(14.0).reshape(7, 2).half()
    own = rows[d.shard(7)]
    draw = torch.Generator().manual_seed(d.rank())
    for n_wanted in (5, 4 * d.rank(), 0):  # as many as the others, other numbers, none at all
        wanted = torch.randint(0, 7, (n_wanted,), generator=draw)
        asked = []
        found = d.take_rows(lambda of: asked.append(of) or own[of], 7, wanted)
        print(torch.equal(found, rows[wanted]), bool((asked[0] < len(own)).all()))
"""


@pytest.mark.slow
def test_each_process_takes_any_rows_from_those_that_hold_them() -> None:
    for stdout in finish_processes(start_processes(TAKING, 3)):
        assert stdout.split() == ["True"] * 6


def test_a_process_without_its_own_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        pytest.raises(ShoalError),
        distributed.processes(torch.device("cuda")),
    ):
        pass


def test_alone_every_call_is_a_no_op() -> None:
    rows = torch.rand(5, 2)
    with distributed.processes(torch.device("cpu")):
        assert not distributed.is_started()
        assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
        assert distributed.gather_rows(rows) is rows
        assert torch.equal(
            distributed.take_rows(lambda own: rows[own], 5, torch.tensor([3, 0, 3])),
            rows[[3, 0, 3]],
        )
        assert distributed.sum_over_processes(rows) is rows
        distributed.barrier()


@pytest.mark.parametrize("n_rows", [0, 1, 5, 6, 7])
@pytest.mark.parametrize("n_processes", [1, 2, 3, 8])
def test_shards_cover_every_row_once(
    n_rows: int, n_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered = []
    monkeypatch.setattr(distributed, "world_size", lambda: n_processes)
    for rank in range(n_processes):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        covered += list(range(n_rows))[distributed.shard(n_rows)]
    assert covered == list(range(n_rows))


NCCL = """
import sys, torch, torch.distributed as dist
from shoal import distributed as d
dist.init_process_group("nccl", init_method=sys.argv[1], rank=0, world_size=1)
with d.processes(torch.device("cuda")):
    rows = torch.arange(14.0, device="cuda").reshape(7, 2)
    sent = [rows.to(kind) for kind in (torch.float16, torch.int64, torch.bool)]
    same = [torch.equal(d.gather_rows(each), each) for each in sent]
    wanted = torch.tensor([5, 0, 5], device="cuda")
    for each in sent[:2]:
        taken = d.take_rows(lambda own: each[own], 7, wanted)
        same.append(torch.equal(taken, each[wanted]))
    d.barrier()
    flag = d.broadcast(True, torch.device("cuda"))
    print(all(same), d.sum_over_processes(rows).sum().item(), flag)
dist.destroy_process_group()
"""


@pytest.mark.gpu
def test_nccl_carries_every_kind_of_message_that_is_sent(tmp_path: Path) -> None:
    """A group of one process suffices; more processes would need more GPUs."""
    found = subprocess.run(
        [sys.executable, "-c", NCCL, f"file://{tmp_path}/meet"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.stdout.split() == ["True", "91.0", "True"], found.stderr
