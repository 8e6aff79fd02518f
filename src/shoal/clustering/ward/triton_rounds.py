"""The last rounds on a GPU: a table of D between all clusters and five kernels per round, without
synchronization with the host.

With few clusters the GPU waits for kernels to be launched, and a round of `rounds.py` launches two
hundred. Here a round has five: they find the mutually nearest pairs, merge their centroids, measure
the unions, find the nearest of these and of clusters whose nearest is gone, and update the clusters
that those are nearest to. Distances equal those of `exact.py` to the bit: no product is fused with
a sum, and squares are added along the same halving tree.

D = B·2^a columns, B odd, are stored in the order in which that tree adds them: the columns w,
w + B, w + 2B, … are the leaves of block w, and adjacent ones are added first. M slots; a slot dies
when its cluster is absorbed.

Needs triton. With TRITON_INTERPRET=1 the kernels run on the CPU, for tests.
"""

import torch
from torch import Tensor

from shoal.clustering.ward import triton_scan
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import Decision
from shoal.clustering.ward.rounds import as_merges

# Most clusters; for more, measuring all pairs takes longer than the bounds of `rounds.py`
MOST_CLUSTERS = 8192

# Memory per distance, and half the memory per entry of a centroid while columns are reordered
ENTRY_BYTES = 8

# Most blocks of leaves, B, of the kernel; other numbers of columns are left to `rounds.py`
MOST_BLOCKS = 7

# Most chunks of a block: partial sums are held on seven levels
MOST_CHUNKS = 128

# Leaves whose sum is unrolled
CHUNK = 16

# Clusters that a program compares with a union: two per thread, whose partial sums stay in
# registers
MEASURED = 256

# Entries of a row read per iteration
SCAN_COLUMNS = 1024

# Rounds between two checks of how many clusters are left
ROUNDS_AT_ONCE = 8


def can_merge(device: torch.device, n_clusters: int, n_columns: int, memory: int) -> bool:
    """Return whether the kernels can merge `n_clusters` on this device in `memory` bytes, faster
    than `rounds.py`."""
    if ENTRY_BYTES * n_clusters * (n_clusters + 2 * n_columns) > memory:
        return False
    n_blocks, n_leaves = blocks_and_leaves(n_columns)
    is_possible = n_blocks <= MOST_BLOCKS and n_leaves <= CHUNK * MOST_CHUNKS
    return is_possible and 1 < n_clusters <= MOST_CLUSTERS and triton_scan.is_available(device)


def blocks_and_leaves(n_columns: int) -> tuple[int, int]:
    """Return the odd part of a number, and the power of two that it is multiplied by."""
    n_leaves = n_columns & -n_columns
    return n_columns // n_leaves, n_leaves


def leaf_order(n_columns: int) -> list[int]:
    """Return the columns, block by block, such that `halving_sum` adds adjacent columns first, then
    adjacent pairs, and so on."""
    n_blocks, n_leaves = blocks_and_leaves(n_columns)
    reversed_bits = [0]
    while len(reversed_bits) < n_leaves:  # 0; 0 1; 0 2 1 3; 0 4 2 6 1 5 3 7; …
        reversed_bits = [2 * i for i in reversed_bits] + [2 * i + 1 for i in reversed_bits]
    half = max(1, n_blocks // 2)
    groups = [
        w for first in range(half) for w in range(first, n_blocks, half)
    ]  # 0 2 4, 1 3 of five; 0 3 6, 1 4, 2 5
    return [w + n_blocks * leaf for w in groups for leaf in reversed_bits]


def merge_all(
    geometry: Geometry,
    nodes: Tensor,
    next_node: int,
    heights: Tensor,
    decision: Decision | None = None,
) -> Tensor:
    """Merge all clusters, with `nodes` (M,), in rounds; unions are numbered from `next_node`.

    `heights` (M,) are the D at which the clusters were made; `decision`, from earlier rounds, is
    the nearest of each.
    """
    table = _Table(geometry, nodes, next_node, heights)
    table.measure(len(nodes))
    if decision is None:
        table.find_nearest()
    else:
        table.nearest.copy_(decision.nearest)
        table.distance.copy_(decision.distance)
    n_left = len(nodes)
    while n_left > 1:
        for _ in range(ROUNDS_AT_ONCE):
            table.round(n_left)
        before = n_left
        n_left = len(nodes) - int(table.counts[0])
        assert n_left < before, "no cluster is nearest to its nearest: a distance is not symmetric"
    return as_merges(*table.made, *table.measured)


class _Table:
    """The state that the kernels share: D (M, M), inf on the diagonal, and the clusters."""

    def __init__(self, geometry: Geometry, nodes: Tensor, next_node: int, heights: Tensor) -> None:
        from shoal.clustering.ward import kernels

        self.kernels = kernels
        n = len(nodes)
        device = nodes.device
        n_columns = geometry.centroids.shape[1]
        self.n = n
        self.next_node = next_node
        order = torch.tensor(leaf_order(n_columns), device=device)
        self.stride = -(-n // MEASURED) * MEASURED
        # (D, M and padding)
        self.points = torch.zeros(n_columns, self.stride, dtype=torch.float64, device=device)
        self.points[:, :n] = geometry.centroids.T[order]
        self.sizes = geometry.sizes.clone()
        self.nodes = nodes.clone()
        self.distances = torch.empty(n, n, dtype=torch.float64, device=device)
        self.nearest = torch.arange(n, dtype=torch.int32, device=device)
        self.distance = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
        self.heights = heights.clone()
        self.role = torch.ones(n, dtype=torch.int32, device=device)  # as if each were a union
        self.is_dead = torch.zeros(n, dtype=torch.int32, device=device)
        # `kept`: the unions of a round, then the clusters whose nearest is gone. `counts`: all
        # merges so far, the unions of the round, and the unions plus those clusters.
        self.kept = torch.arange(n, dtype=torch.int32, device=device)
        self.counts = torch.tensor([0, n, n], dtype=torch.int32, device=device)
        # The merges: two nodes; D and the size of the union.
        self.made = torch.zeros(2, n - 1, dtype=torch.int64, device=device)
        self.measured = torch.zeros(2, n - 1, dtype=torch.float64, device=device)

    def round(self, n_left: int) -> None:
        """Merge all mutually nearest pairs; at most `n_left` clusters are live."""
        width = 1 << (self.n - 1).bit_length()
        self.kernels.pair[(1,)](
            self.nearest, self.distance, self.heights, self.sizes, self.nodes, self.role,
            self.is_dead, self.kept, self.counts,
            *self.made, *self.measured, self.n, self.next_node,
            WIDTH=width, num_warps=max(4, min(16, width // 256)),
        )  # fmt: skip
        most = max(1, n_left // 2)
        self.kernels.merge[(most,)](
            self.points, self.sizes, self.nearest, self.is_dead, self.kept, self.counts,
            self.stride, len(self.points), WIDTH=256, enable_fp_fusion=False,
        )  # fmt: skip
        self.measure(most)
        self.find_nearest()
        self.kernels.update_nearest[(self.n,)](
            self.nearest, self.distance, self.role, self.is_dead, self.kept, self.counts,
            self.n, WIDTH=SCAN_COLUMNS,
        )  # fmt: skip

    def find_nearest(self) -> None:
        """Find the nearest of unions and of clusters whose nearest is gone; of all clusters before
        the first round."""
        self.kernels.find[(self.n,)](
            self.distances, self.nearest, self.distance, self.role, self.is_dead,
            self.n, WIDTH=SCAN_COLUMNS,
        )  # fmt: skip

    def measure(self, most: int) -> None:
        """Measure the unions of a round, at most `most`, against all clusters; all pairs before the
        first round."""
        blocks, leaves = blocks_and_leaves(len(self.points))
        chunk = min(CHUNK, leaves)
        self.kernels.measure[(most, self.stride // MEASURED)](
            self.points, self.sizes, self.distances, self.kept, self.counts, self.n, self.stride,
            N_BLOCKS=blocks, N_CHUNKS=leaves // chunk, CHUNK=chunk, WIDTH=MEASURED,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
