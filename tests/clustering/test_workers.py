import threading

import pytest
import torch

from shoal.clustering.workers import Scratch, Workers

CPU = torch.device("cpu")


def test_torchs_threads_are_taken_and_given_back() -> None:
    before = torch.get_num_threads()
    with Workers(CPU) as workers:
        assert workers.n == before
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_every_worker_infers_and_the_caller_does_not_afterwards() -> None:
    barrier = threading.Barrier(2, timeout=300)

    def work(item: int) -> bool:
        barrier.wait()
        return torch.is_inference_mode_enabled()

    with Workers(CPU) as workers:
        assert torch.is_inference_mode_enabled()
        assert workers.map(work, range(2)) == [True, True]
    assert not torch.is_inference_mode_enabled()


def test_results_come_in_order_from_several_threads() -> None:
    barrier = threading.Barrier(2, timeout=300)
    with Workers(CPU) as workers:
        assert workers.n == 2

        def work(item: int) -> int:
            barrier.wait()  # passes only when two threads are at it
            return item * item

        assert workers.map(work, range(6)) == [0, 1, 4, 9, 16, 25]


def test_an_error_in_a_worker_reaches_the_caller_and_frees_the_threads() -> None:
    before = torch.get_num_threads()

    def work(item: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Workers(CPU) as workers:
        workers.map(work, range(4))
    assert torch.get_num_threads() == before


def test_scratch_memory_is_reused_within_a_thread_and_not_shared_between_threads() -> None:
    scratch = Scratch(CPU)
    first = scratch.array("a", (4, 5), torch.float32)
    assert scratch.array("a", (2, 3), torch.float32).data_ptr() == first.data_ptr()
    assert scratch.array("b", (4, 5), torch.float32).data_ptr() != first.data_ptr()
    seen: list[int] = []
    thread = threading.Thread(
        target=lambda: seen.append(scratch.array("a", (4, 5), torch.float32).data_ptr())
    )
    thread.start()
    thread.join()
    assert seen != [first.data_ptr()]
