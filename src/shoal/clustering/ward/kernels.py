"""The kernels of `triton_scan.py` and `triton_rounds.py`; importing this module needs triton.

They are not specialized on numbers of clusters and rows, which would compile them again for each
tree or round.

The role of a cluster in a round: 0 unchanged, 1 it absorbs another one, 2 it is absorbed, 3 its
nearest is absorbed. M slots, C clusters measured by a program.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n", "next_node"])  # type: ignore[untyped-decorator]
def pair(  # type: ignore[no-untyped-def]
    nearest_at, distance_at, heights_at, sizes_at, nodes_at, role_at, dead_at, kept_at, counts_at,
    left_at, right_at, height_at, size_at, n, next_node, WIDTH: tl.constexpr,
):  # fmt: skip
    """Find the mutually nearest pairs, in ascending order of the kept slots, in a single
    program."""
    slot = tl.arange(0, WIDTH)
    is_slot = slot < n
    other = tl.load(nearest_at + slot, mask=is_slot, other=0)
    third = tl.load(nearest_at + other)
    fourth = tl.load(nearest_at + third)
    is_alive = is_slot & (tl.load(dead_at + slot, mask=is_slot, other=1) == 0)
    is_merged = is_alive & (third == slot) & (other != slot)
    is_kept = is_merged & (slot < other)
    is_stale = is_alive & (third != slot) & (fourth == other)
    role = tl.where(is_kept, 1, tl.where(is_merged, 2, tl.where(is_stale, 3, 0)))
    tl.store(role_at + slot, role, mask=is_slot)
    number = tl.cumsum(is_kept.to(tl.int32), 0) - 1
    before = tl.load(counts_at)
    distance = tl.load(distance_at + slot, mask=is_kept, other=0.0)
    slot_height = tl.load(heights_at + slot, mask=is_kept, other=0.0)
    theirs = tl.load(heights_at + other)
    # Rounding may put a union below its parts, but a tree's heights must not fall.
    height = tl.maximum(distance, tl.maximum(slot_height, theirs))
    left = tl.load(nodes_at + slot, mask=is_kept, other=0)
    right = tl.load(nodes_at + other)
    size = tl.load(sizes_at + slot, mask=is_kept, other=0.0) + tl.load(sizes_at + other)
    made = before + number
    tl.store(left_at + made, left, mask=is_kept)
    tl.store(right_at + made, right, mask=is_kept)
    tl.store(height_at + made, height, mask=is_kept)
    tl.store(size_at + made, size, mask=is_kept)
    tl.store(kept_at + number, slot, mask=is_kept)
    tl.store(heights_at + slot, height, mask=is_kept)
    tl.store(nodes_at + slot, next_node + made, mask=is_kept)
    n_kept = tl.sum(is_kept.to(tl.int32), 0)
    tl.store(kept_at + n_kept + tl.cumsum(is_stale.to(tl.int32), 0) - 1, slot, mask=is_stale)
    tl.store(counts_at, before + n_kept)
    tl.store(counts_at + 1, n_kept)
    tl.store(counts_at + 2, n_kept + tl.sum(is_stale.to(tl.int32), 0))


@triton.jit(do_not_specialize=["n", "next_node"])  # type: ignore[untyped-decorator]
def merge(  # type: ignore[no-untyped-def]
    points_at,
    sizes_at,
    nearest_at,
    dead_at,
    kept_at,
    counts_at,
    stride,
    n_columns,
    WIDTH: tl.constexpr,
):
    """Compute the centroid and the size of a union in its kept slot, one program per pair."""
    at = tl.program_id(0)
    if at < tl.load(counts_at + 1):
        kept = tl.load(kept_at + at)
        gone = tl.load(nearest_at + kept)
        a = tl.load(sizes_at + kept)
        b = tl.load(sizes_at + gone)
        total = a + b
        for start in range(0, n_columns, WIDTH):
            column = start + tl.arange(0, WIDTH)
            row = points_at + column * stride
            left = tl.load(row + kept, mask=column < n_columns, other=0.0)
            right = tl.load(row + gone, mask=column < n_columns, other=0.0)
            tl.store(row + kept, (left * a + right * b) / total, mask=column < n_columns)
        tl.store(sizes_at + kept, total)
        tl.store(nearest_at + gone, gone)
        tl.store(dead_at + gone, 1)


@triton.jit  # type: ignore[untyped-decorator]
def chunk_sum(line_at, union, slots, stride, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return sums (C,) of squared differences of CHUNK leaves, added pairwise."""
    for leaf in tl.static_range(CHUNK):
        gap = tl.load(line_at + union) - tl.load(line_at + slots)
        line_at += stride
        value = gap * gap
        if leaf % 2 == 0:
            one = value
        else:
            value = one + value
            if leaf % 4 == 1:
                two = value
            else:
                value = two + value
                if leaf % 8 == 3:
                    four = value
                else:
                    value = four + value
                    if leaf % 16 == 7:
                        eight = value
                    else:
                        value = eight + value
    return value


@triton.jit  # type: ignore[untyped-decorator]
def block_sum(  # type: ignore[no-untyped-def]
    line_at, union, slots, stride, N_CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    """Return sums (C,) over the chunks of a block, added pairwise."""
    value = chunk_sum(line_at, union, slots, stride, CHUNK)
    level0 = value
    level1 = value
    level2 = value
    level3 = value
    level4 = value
    level5 = value
    level6 = value
    for chunk in range(1, N_CHUNKS):
        value = chunk_sum(line_at + chunk * CHUNK * stride, union, slots, stride, CHUNK)
        if chunk % 2 == 0:
            level0 = value
        else:
            value = level0 + value
            if N_CHUNKS > 2:
                if chunk % 4 == 1:
                    level1 = value
                else:
                    value = level1 + value
                    if N_CHUNKS > 4:
                        if chunk % 8 == 3:
                            level2 = value
                        else:
                            value = level2 + value
                            if N_CHUNKS > 8:
                                if chunk % 16 == 7:
                                    level3 = value
                                else:
                                    value = level3 + value
                                    if N_CHUNKS > 16:
                                        if chunk % 32 == 15:
                                            level4 = value
                                        else:
                                            value = level4 + value
                                            if N_CHUNKS > 32:
                                                if chunk % 64 == 31:
                                                    level5 = value
                                                else:
                                                    value = level5 + value
                                                    if N_CHUNKS > 64:
                                                        if chunk % 128 == 63:
                                                            level6 = value
                                                        else:
                                                            value = level6 + value
    return value


@triton.jit(do_not_specialize=["n", "next_node"])  # type: ignore[untyped-decorator]
def measure(  # type: ignore[no-untyped-def]
    points_at, sizes_at, table_at, kept_at, counts_at, n, stride,
    N_BLOCKS: tl.constexpr, N_CHUNKS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write D of a union and WIDTH clusters into its row and column of the table, one program
    each."""
    at = tl.program_id(0)
    if at < tl.load(counts_at + 1):
        union = tl.load(kept_at + at)
        slots = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        done = tl.zeros((WIDTH,), tl.float64)
        group = tl.zeros((WIDTH,), tl.float64)
        for block in range(N_BLOCKS):
            line_at = points_at + block * N_CHUNKS * CHUNK * stride
            value = block_sum(line_at, union, slots, stride, N_CHUNKS, CHUNK)
            if (block >= 3) & (block % 2 == 1):  # blocks come in groups of three, two, two
                done = done + group
                group = value
            else:
                group = group + value
        a = tl.load(sizes_at + union)
        b = tl.load(sizes_at + slots, mask=slots < n, other=1.0)
        distance = (done + group) * ((2.0 * (a * b)) / (a + b))
        distance = tl.where(slots == union, float("inf"), distance)
        tl.store(table_at + union.to(tl.int64) * n + slots, distance, mask=slots < n)
        tl.store(table_at + slots.to(tl.int64) * n + union, distance, mask=slots < n)


@triton.jit(do_not_specialize=["n", "next_node"])  # type: ignore[untyped-decorator]
def find(  # type: ignore[no-untyped-def]
    table_at, nearest_at, distance_at, role_at, dead_at, n, WIDTH: tl.constexpr
):
    """Find the nearest cluster of a row, the lowest slot on ties, one program per row."""
    row = tl.program_id(0)
    role = tl.load(role_at + row)
    if (role == 1) | (role == 3):
        best = tl.full((WIDTH,), float("inf"), tl.float64)
        best_at = tl.full((WIDTH,), 2147483647, tl.int32)
        for start in range(0, n, WIDTH):
            column = start + tl.arange(0, WIDTH)
            is_alive = tl.load(dead_at + column, mask=column < n, other=1) == 0
            value = tl.load(
                table_at + row.to(tl.int64) * n + column, mask=is_alive, other=float("inf")
            )
            is_less = value < best
            best = tl.where(is_less, value, best)
            best_at = tl.where(is_less, column, best_at)
        least = tl.min(best, 0)
        first = tl.min(tl.where(best == least, best_at, 2147483647), 0)
        tl.store(nearest_at + row, tl.where(first == 2147483647, row, first))
        tl.store(distance_at + row, least)


@triton.jit(do_not_specialize=["n", "next_node"])  # type: ignore[untyped-decorator]
def update_nearest(  # type: ignore[no-untyped-def]
    nearest_at, distance_at, role_at, dead_at, kept_at, counts_at, n, WIDTH: tl.constexpr
):
    """Update the nearest of an unchanged row, one program per row.

    A cluster that was just decided may have the row as its nearest, and come before the row's
    current nearest by a rounding error.
    """
    row = tl.program_id(0)
    is_idle = (tl.load(role_at + row) == 0) & (tl.load(dead_at + row) == 0)
    n_changed = tl.load(counts_at + 2)
    if is_idle & (n_changed > 0):
        best = tl.full((WIDTH,), float("inf"), tl.float64)
        best_at = tl.full((WIDTH,), 2147483647, tl.int32)
        for start in range(0, n_changed, WIDTH):
            at = start + tl.arange(0, WIDTH)
            changed = tl.load(kept_at + at, mask=at < n_changed, other=0)
            is_mine = (at < n_changed) & (tl.load(nearest_at + changed) == row)
            value = tl.load(distance_at + changed, mask=is_mine, other=float("inf"))
            is_less = is_mine & ((value < best) | ((value == best) & (changed < best_at)))
            best = tl.where(is_less, value, best)
            best_at = tl.where(is_less, changed, best_at)
        least = tl.min(best, 0)
        first = tl.min(tl.where(best == least, best_at, 2147483647), 0)
        row_distance = tl.load(distance_at + row)
        own_at = tl.load(nearest_at + row)
        if (first != 2147483647) & (
            (least < row_distance) | ((least == row_distance) & (first < own_at))
        ):
            tl.store(nearest_at + row, first)
            tl.store(distance_at + row, least)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["n_rows", "n_columns", "n_splits", "tiles"]
)
def scan(  # type: ignore[no-untyped-def]
    rows_at, points_at, half_at, sizes_at, inverse_at, value_at, index_at,
    n_rows, n_columns, n_splits, tiles,
    N_DIMS: tl.constexpr, KEPT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Find the KEPT best columns of BLOCK_R rows in some tiles of columns (`triton_scan.py`)."""
    row_index = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    is_row = row_index < n_rows
    row = tl.load(rows_at + row_index, mask=is_row, other=0)
    half = tl.load(half_at + row)
    size = tl.load(sizes_at + row)
    slots = tl.arange(0, KEPT)
    best = tl.full((BLOCK_R, KEPT), float("-inf"), tl.float32)
    best_index = tl.zeros((BLOCK_R, KEPT), tl.int32)
    dims = tl.arange(0, BLOCK_D)
    tile = tl.program_id(1) * tiles
    last = tile + tiles
    while tile < last:
        column = tile * BLOCK_C + tl.arange(0, BLOCK_C)
        is_column = column < n_columns
        safe = tl.where(is_column, column, 0)
        product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        for start in range(0, N_DIMS, BLOCK_D):
            is_dim = start + dims < N_DIMS
            mine = tl.load(
                points_at + row.to(tl.int64)[:, None] * N_DIMS + (start + dims)[None, :],
                mask=is_dim[None, :], other=0.0,
            )  # fmt: skip
            theirs = tl.load(
                points_at + safe.to(tl.int64)[None, :] * N_DIMS + (start + dims)[:, None],
                mask=is_dim[:, None], other=0.0,
            )  # fmt: skip
            product = tl.dot(mine, theirs, product)
        other = tl.load(half_at + safe, mask=is_column, other=float("inf"))
        inverse = tl.load(inverse_at + safe, mask=is_column, other=1.0)
        value = (product - half[:, None] - other[None, :]) / (
            size[:, None] * inverse[None, :] + 1.0
        )
        value = tl.where(
            is_column[None, :] & (column[None, :] != row[:, None]), value, float("-inf")
        )
        largest = tl.max(value, axis=1)
        worst = tl.min(best, axis=1)
        while tl.max((largest > worst).to(tl.int32), axis=0) > 0:
            at = tl.argmax(value, axis=1)
            out = tl.argmin(best, axis=1)
            is_better = (largest > worst)[:, None] & (slots[None, :] == out[:, None])
            best = tl.where(is_better, largest[:, None], best)
            best_index = tl.where(
                is_better, (tile * BLOCK_C + at)[:, None].to(tl.int32), best_index
            )
            value = tl.where(tl.arange(0, BLOCK_C)[None, :] == at[:, None], float("-inf"), value)
            largest = tl.max(value, axis=1)
            worst = tl.min(best, axis=1)
        tile += 1
    target = (row_index.to(tl.int64)[:, None] * n_splits + tl.program_id(1)) * KEPT + slots[None, :]
    tl.store(value_at + target, best, mask=is_row[:, None])
    tl.store(index_at + target, best_index, mask=is_row[:, None])
