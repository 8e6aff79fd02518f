"""Two processes that share Ward's scans and the neighbor search give the same bits as one
process."""

import pytest

from several_processes import finish_processes, start_processes

SCRIPT = """
import numpy as np, torch
from torch.nn import functional as F
from shoal import distributed as d
from shoal.clustering import neighbors
from shoal.clustering.ward import linkage, scan, ward_linkage

# Small, and shared all the same.
linkage.SHARED_PRODUCTS = scan.SHARED_PRODUCTS = neighbors.SHARED_PRODUCTS = 0
linkage.FEW_PRODUCTS = linkage.MAX_TIED = 0
scan.FEW["cpu"] = 20  # scans go on until few clusters are left
cpu, sent = torch.device("cpu"), []
draw = torch.Generator().manual_seed(0)
rows = F.normalize(torch.randn(400, 12, generator=draw), dim=1)
ties = torch.randint(0, 3, (300, 5), generator=draw).float()  # copies, and many equal distances
one_hot = torch.eye(130)


def count(rows):
    sent.append(len(rows))
    return d.gather_rows(rows)


def found():
    own = torch.arange(len(rows))
    lists = neighbors.k_nearest(rows, rows, 9, exclude=own)
    few = neighbors.k_nearest(rows[:7], rows, 3)
    trees = [ward_linkage(each) for each in (rows, ties, one_hot)]
    known = {"indices": lists.indices, "similarities": lists.similarities}
    return [*known.values(), few.indices, linkage.link_rows(rows, **known), *trees]


scan.gather_rows = count
with d.processes(cpu):
    if d.is_main():
        alone = found()
        assert not sent
        with d.others_waiting():
            shared = found()
        print([np.array_equal(a, b) for a, b in zip(alone, shared, strict=True)])
    d.broadcast_flag(True, cpu)
    print(sent[0])
"""


@pytest.mark.slow
def test_shared_scans_and_searches_give_the_bits_of_one_process():
    first, second = finish_processes(start_processes(SCRIPT))
    same, n_first = first.splitlines()
    assert same == str([True] * 7)
    assert (int(n_first), int(second)) == (200, 200)  # each scanned half of the 400 rows
