"""Searches for the review page: similar images, near-duplicates, candidates, merges, parts, paths.

All but the path search use embeddings of the run, (N, D); a run without them is refused.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import scipy  # loads its modules when they are needed: the page needs none at first

from shoal.arrays import Floats, Ints
from shoal.clustering.tree import CategoryTree
from shoal.errors import UsageError, shown
from shoal.report.map import (
    TSNE_DIMENSIONS,
    TSNE_IMAGES,
    MapLayout,
    cached_layouts,
    principal_components,
    stratified,
    tsne,
)
from shoal.report.summary import ONE_GROUP, close_pairs, may_be_part, sampled
from shoal.review.actions import CONFIRMED, MOVED, PREDICTED, REJECTED
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.review.state import by_category, parts_of
from shoal.review.whitening import BLOCK_ROWS, unit, whitened
from shoal.runs import NO_CATEGORY, read_vectors

# Maximum number of similar images
MAX_FOUND = 2_000

# Maximum number of candidates for a category
MAX_CANDIDATES = 20_000

# Weight of a candidate's similarity to the nearest other category; chosen on Flowers-102
OTHERS_WEIGHT = 0.5

# Images of a category that are compared with those of another
MAX_COMPARED = 250

# Maximum number of images whose mean represents a category when targets are ranked
MAX_AVERAGED = 100

# Maximum number of suggested merges, not counting pairs marked as distinct
MAX_MERGES = 50

# Least cosine similarity of near-duplicates in frozen embeddings
NEAR_DUPLICATE = 0.9

# Images that are compared with their whole category at a time
COMPARED_ROWS = 1 << 10

# Categories compared at a time; each takes memory for its images twice, and for one block
COMPARING = 4

# With at least this many labeled, confirmed or moved images, candidates for a category are ranked
# by the mean of these; with fewer, by the mean of all its images
MIN_DECIDED = 3


# The largest x and y of the map
MAX_COORDINATE = 65535


class Search:
    """Searches in one run."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self._computing = threading.Lock()

    @cached_property
    def vectors(self) -> Floats:
        """(N, D) the embeddings, mapped into memory."""
        return read_vectors(self.review.run.path / "embeddings.npy", len(self.review.state))

    def _unit(self, rows: Ints | slice) -> Floats:
        """Return embeddings as unit rows, in float32 at least; float16 is for storage only."""
        return unit(np.asarray(self.vectors[rows], np.result_type(self.vectors, np.float32)))

    def similar(self, row: int) -> dict[str, list[float]]:
        """Return the images most similar to one, itself first, with their similarity."""
        direction = self._unit(slice(row, row + 1))[0]
        starts = range(0, len(self.vectors), BLOCK_ROWS)
        blocks = (self._unit(slice(start, start + BLOCK_ROWS)) for start in starts)
        similarity = np.concatenate([block @ direction for block in blocks])
        similarity[row] = np.inf
        rows = _highest(similarity, np.arange(len(similarity)), MAX_FOUND)
        similarity[row] = 1.0
        return {"rows": rows.tolist(), "similarity": np.round(similarity[rows], 3).tolist()}

    def near_duplicates(self) -> dict[str, list[float]]:
        """Return the images that have a near-duplicate in their category, grouped, each with the
        similarity to its most similar one; the most similar groups first.

        Frozen embeddings are compared, because training makes all images of a category similar.
        """
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        with self.review.lock:
            ids = self.review.state.category.copy()
        n_images = len(ids)
        run = self.review.run
        name = "frozen.npy" if run.has("frozen.npy") else "embeddings.npy"
        vectors = read_vectors(run.path / name, n_images)
        nearest = np.arange(n_images)
        similarity = np.zeros(n_images)

        def compare(rows: Ints) -> None:
            x = unit(np.asarray(vectors[rows], np.float32))
            # A copy, because NumPy multiplies a matrix by its own transpose more slowly.
            columns = x.T.copy()
            for start in range(0, len(rows), COMPARED_ROWS):
                block = x[start : start + COMPARED_ROWS] @ columns
                np.fill_diagonal(block[:, start:], 0)  # an image is not its own duplicate
                compared = rows[start : start + COMPARED_ROWS]
                nearest[compared] = rows[block.argmax(axis=1)]
                similarity[compared] = block.max(axis=1)

        # One thread for each product: several would wait for each other most of the time. The lock,
        # because limits that overlap would not be restored.
        with self._computing, threadpool_limits(1), ThreadPoolExecutor(COMPARING) as pool:
            list(pool.map(compare, by_category(ids, nearest).values()))
        found = np.flatnonzero(similarity >= NEAR_DUPLICATE)
        pairs = scipy.sparse.coo_array(
            (similarity[found], (found, nearest[found])), (n_images, n_images)
        )
        n_groups, group = scipy.sparse.csgraph.connected_components(pairs, directed=False)
        closest = np.zeros(n_groups)
        np.maximum.at(closest, group, similarity)
        found = found[np.lexsort((found, group[found], -closest[group[found]]))][:MAX_FOUND]
        return {"rows": found.tolist(), "similarity": np.round(similarity[found], 3).tolist()}

    @cached_property
    def _whitened(self) -> Floats:
        """(N, C) the whitened embeddings, unit rows."""
        return whitened(self.vectors)

    def candidates(self, category: int) -> dict[str, list[int]]:
        """Return images outside a category that may belong to it, most probable first.

        These are unlabeled undecided images, and images rejected from other categories. Flagged
        images are left for a person to look at. Candidates are ordered by their similarity to the
        labeled, confirmed and moved images of the category, minus half of that to the nearest other
        category or refused image, in whitened embeddings.
        """
        with self.review.lock:
            state = self.review.state
            members = state.members(category)
            status = state.status.copy()
            is_open = (state.category != category) & np.isin(status, (PREDICTED, REJECTED))
            rejected = np.flatnonzero(state.is_rejected(np.arange(len(state)), category))
            is_open[rejected] = False
            labels = state.given_labels()
            is_placed = np.isin(status, (CONFIRMED, MOVED))
            decided = np.select(
                [is_placed, status == PREDICTED], [state.category, labels], NO_CATEGORY
            )
        if not len(members):
            raise UsageError("The category has no image to start from.")
        others = _members(decided)
        examples = others.pop(category, members[:0])
        if len(examples) < MIN_DECIDED:
            examples = members
        centers = [self._whitened[rows].mean(axis=0) for rows in (examples, *others.values())]
        center, *other_directions = unit(np.array([*centers, *self._whitened[rejected]]))
        score = self._whitened @ center  # (N,)
        rows = _highest(score, np.flatnonzero(is_open & (labels == NO_CATEGORY)), MAX_CANDIDATES)
        if other_directions:
            nearest = (self._whitened[rows] @ np.array(other_directions).T).max(axis=1)
            score[rows] -= OTHERS_WEIGHT * nearest
        return {"rows": _highest(score, rows, MAX_CANDIDATES).tolist()}

    def merges(self) -> list[dict[str, object]]:
        """Return the closest pairs of categories.

        Each has its separation, whether it looks like one category, and `second`, the share of
        images whose second category is the other one.
        """
        with self.review.lock:
            state = self.review.state
            records = state.categories
            ids = state.category.copy()
            named = state.current_by_name()
            distinct = set(state.distinct)
        names = state.columns["second_category"]
        second = np.array([named.get(name, NO_CATEGORY) for name in names])
        members = {number: sampled(rows, MAX_COMPARED) for number, rows in _members(ids).items()}
        novel = {
            number
            for number, record in records.items()
            if may_be_part(record.name, is_novel=record.is_novel)
        }
        suggested: list[dict[str, object]] = []
        for a, b, separation in close_pairs(self.vectors, members, novel, MAX_MERGES, distinct):
            is_second = np.concatenate([second[members[a]] == b, second[members[b]] == a])
            suggested.append(
                {
                    "a": a,
                    "b": b,
                    "separation": round(separation, 2),
                    "alike": separation < ONE_GROUP,
                    "second": round(float(is_second.mean()), 3),
                }
            )
        return suggested

    def tree(self) -> dict[str, object]:
        """Return the tree of the categories that have images.

        Its leaves are categories; a merge has two nodes and a height, as in scipy's linkage.
        """
        with self.review.lock:
            members = _members(self.review.state.category)
        names = [str(number) for number in members]
        run = self.review.run
        vectors = read_vectors(run.path / f"{run.clustered}.npy", len(self.review.state))
        tree = CategoryTree.of_members(names, [*members.values()], vectors)
        merges = [
            [int(first), int(second), round(height, 4)]
            for first, second, height, _ in tree.linkage.tolist()
        ]
        return {"categories": [*members], "merges": merges}

    def targets(self, rows: list[int]) -> list[int]:
        """Return the categories nearest to some images, by the angle between means, nearest first.

        A category that all of the images are in is left out.
        """
        with self.review.lock:
            ids = self.review.state.category.copy()
        members = _members(ids)
        homes = np.unique(ids[rows])
        if len(homes) == 1:
            members.pop(int(homes[0]), None)
        groups = [np.array(rows), *members.values()]
        means = [self._unit(sampled(some, MAX_AVERAGED)).mean(axis=0) for some in groups]
        directions = unit(np.array(means))
        order = np.argsort(-(directions[1:] @ directions[0]), kind="stable")
        return np.array([*members])[order].tolist()

    def parts(self, category: int, n_parts: int) -> dict[str, list[list[int]]]:
        """Return the images of a category, split into parts by its tree; within a part, the most
        typical first.

        The first part keeps the id and name of the category.
        """
        with self.review.lock:
            parts = parts_of(self.review.state, category, n_parts)
        position = np.argsort(self.review.state.typical_order)
        return {"parts": [part[np.argsort(position[part])].tolist() for part in parts]}

    def paths(self, text: str) -> list[int]:
        """Return the images whose path or note contains a text, ignoring case."""
        wanted = text.casefold()
        notes = self.review.state.notes
        return [
            row
            for row, path in enumerate(self.review.state.paths)
            if wanted in shown(path).casefold() or wanted in notes.get(row, "").casefold()
        ]

    def layout(self, name: str) -> dict[str, object]:
        """Return a layout of the map: 'pca' or 'tsne'; for any other name, t-SNE if it is computed
        or stored, otherwise PCA.

        t-SNE takes seconds to compute for hundreds of images, and half a minute for thousands. With
        fewer than three images, the layout is always PCA.
        """
        has_tsne = "_tsne" in vars(self) or bool(self._stored)
        wants_tsne = name == "tsne" or (name != "pca" and has_tsne)
        if not wants_tsne or len(self._mapped) < 3:
            return self._pca
        with self._computing:
            return self._tsne

    @cached_property
    def _mapped(self) -> Ints:
        """The rows of the images on the map."""
        return stratified(self.review.state.category_ids, TSNE_IMAGES)

    @cached_property
    def _stored(self) -> list[MapLayout]:
        """The layouts that a report has stored in the run."""
        return cached_layouts(ReviewedRun(self.review.run.path))

    @cached_property
    def _pca(self) -> dict[str, object]:
        points = principal_components(self.vectors[self._mapped], 2)
        return _scaled(self._mapped, points, "pca")

    @cached_property
    def _tsne(self) -> dict[str, object]:
        if self._stored:
            return _scaled(self._stored[-1].rows, self._stored[-1].points, "tsne")
        points = tsne(principal_components(self.vectors[self._mapped], TSNE_DIMENSIONS))
        return _scaled(self._mapped, points, "tsne")


def _scaled(rows: Ints, points: Floats, layout: str) -> dict[str, object]:
    low = points.min(axis=0)
    high = points.max(axis=0)
    x, y = np.rint((points - low) / np.maximum(high - low, 1e-12) * MAX_COORDINATE).T
    # y points down on a page
    return {
        "layout": layout,
        "rows": rows.tolist(),
        "x": x.tolist(),
        "y": (MAX_COORDINATE - y).tolist(),
    }


def _members(ids: Ints) -> dict[int, Ints]:
    return by_category(ids, np.flatnonzero(ids != NO_CATEGORY))


def _highest(values: Floats, rows: Ints, max_rows: int) -> Ints:
    """Return the rows with the highest values, highest first, ties by row."""
    if len(rows) > max_rows:  # few are sorted faster than all
        rows = rows[values[rows] >= np.partition(values[rows], -max_rows)[-max_rows]]
    return rows[np.argsort(-values[rows], kind="stable")[:max_rows]]
