"""Heartbeats, in one process and between two."""

import pytest
from torch.distributed import HashStore

from several_processes import end_first, start_processes
from shoal.distributed import ENDED, LEFT, N_MISSED, Heartbeat

LOSING = """
import os, signal, torch
from shoal import distributed as d
d.BEAT_S, d.N_MISSED = 0.2, 20
with d.processes(torch.device("cpu")):
    d.barrier()
    if d.rank() == 1:
        os.kill(os.getpid(), signal.HOW)
    d.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_lost_process_ends_the_others_with_a_message(how: str) -> None:
    """A killed process closes its connections; a stopped one, like one on a lost machine, only
    sends no more heartbeats."""
    code, stderr = end_first(start_processes(LOSING.replace("HOW", how)))
    assert code == 1
    assert "process 0 of 2 ends because another process has ended" in stderr


@pytest.mark.parametrize(("sign", "lost"), [(ENDED, True), (LEFT, False)])
def test_a_failed_process_is_lost_at_once_and_a_finished_one_never(sign: str, lost: bool) -> None:
    store = HashStore()
    store.set("shoal/alive/1", sign)
    heartbeat = Heartbeat(store, 0, 2)
    assert [heartbeat.is_lost(1) for _ in range(2 * N_MISSED)] == [lost] * 2 * N_MISSED


def test_a_silent_process_is_lost_until_its_next_beat() -> None:
    store = HashStore()
    found = []
    heartbeat = Heartbeat(store, 0, 2)
    store.set("shoal/alive/1", "1")
    found += [heartbeat.is_lost(1) for _ in range(N_MISSED + 2)]
    store.set("shoal/alive/1", "2")
    assert [*found, heartbeat.is_lost(1)] == [False] * (N_MISSED + 1) + [True, False]


def test_a_context_says_how_it_ended() -> None:
    store = HashStore()
    with Heartbeat(store, 0, 1):
        assert store.get("shoal/alive/0") == b"0"
    assert store.get("shoal/alive/0").decode() == LEFT
    with pytest.raises(KeyboardInterrupt), Heartbeat(store, 0, 1):
        raise KeyboardInterrupt
    assert store.get("shoal/alive/0").decode() == ENDED
