"""Searches for the review page: similar images, near-duplicates, candidates, merges, parts, paths.

All but the path search use embeddings of the run, (N, D); a run without them is refused.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from shoal.arrays import Floats, Ints
from shoal.clustering.category_tree import CategoryTree
from shoal.errors import UsageError
from shoal.report.suggestions import ONE_GROUP, close_pairs, may_be_part
from shoal.review.actions import CONFIRMED, MOVED, PREDICTED, REJECTED
from shoal.review.parts import cut, labeled_first, linkage_of
from shoal.review.review import Review
from shoal.review.whitening import unit, whitened
from shoal.runs import NO_CATEGORY, read_vectors
from shoal.text import shown

MAX_FOUND = 2_000
"""Maximum number of similar images."""

MAX_CANDIDATES = 20_000
"""Maximum number of candidates for a category."""

OTHERS_WEIGHT = 0.5
"""Weight of a candidate's similarity to the nearest other category; chosen on Flowers-102."""

MAX_COMPARED = 400
"""Images of a category that are compared with those of another."""

MAX_MEAN = 100
"""Maximum number of images whose mean represents a category when targets are ranked."""

MAX_PARTS = 20
MAX_MERGES = 50
"""Maximum number of suggested merges, not counting pairs marked as distinct."""

NEAR_DUPLICATE = 0.9
"""Least cosine similarity of near-duplicates in frozen embeddings."""

BLOCK_ROWS = 1 << 16
COMPARED_ROWS = 1 << 10
"""Images that are compared with their whole category at a time."""

MIN_DECIDED = 3
"""With at least this many labeled, confirmed or moved images, their mean is the center."""


class Search:
    """Searches in one run."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self._linkage: dict[tuple[int, int], Ints] = {}
        """The tree of the last split, by category and action, for other numbers of parts."""

    @cached_property
    def vectors(self) -> Floats:
        """(N, D) the embeddings, mapped into memory."""
        return read_vectors(self.review.run.path / "embeddings.npy", len(self.review.state))

    @cached_property
    def _norms(self) -> Floats:
        """(N,) norms of the embeddings, never 0."""
        return np.maximum(self._by_blocks(lambda block: np.linalg.norm(block, axis=1)), 1e-12)

    def _by_blocks(self, compute: Callable[[Floats], Floats]) -> Floats:
        dtype = np.result_type(self.vectors, np.float32)  # float16 is for storage only
        starts = range(0, len(self.vectors), BLOCK_ROWS)
        blocks = (self.vectors[start : start + BLOCK_ROWS] for start in starts)
        return np.concatenate([compute(np.asarray(block, dtype)) for block in blocks])

    def similarity(self, center: Floats) -> Floats:
        """Return (N,) the cosine similarity of every image with a vector."""
        direction = center / max(float(np.linalg.norm(center)), 1e-12)
        return self._by_blocks(lambda block: block @ direction.astype(block.dtype)) / self._norms

    def similar(self, row: int) -> dict[str, list[float]]:
        """Return the images most similar to one, itself first, with their similarity."""
        similarity = self.similarity(np.asarray(self.vectors[row], np.float64))
        similarity[row] = np.inf
        rows = _highest(similarity, np.arange(len(similarity)), MAX_FOUND)
        similarity[row] = 1.0
        return {"rows": rows.tolist(), "similarity": np.round(similarity[rows], 3).tolist()}

    def near_duplicates(self) -> dict[str, list[float]]:
        """Return the images that have a near-duplicate in their category, grouped, each with the
        similarity to its most similar one; the most similar groups first.

        Frozen embeddings are compared, because training makes all images of a category similar.
        """
        with self.review.lock:
            ids = self.review.state.category.copy()
        run = self.review.run
        name = "frozen.npy" if run.has("frozen.npy") else "embeddings.npy"
        vectors = read_vectors(run.path / name, len(ids))
        nearest = np.arange(len(ids))
        similarity = np.zeros(len(ids))
        order = np.argsort(ids, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1):
            x = unit(np.asarray(vectors[rows], np.float32))
            for start in range(0, len(rows), COMPARED_ROWS):
                block = x[start : start + COMPARED_ROWS] @ x.T
                at = np.arange(len(block))
                block[at, start + at] = 0  # an image is not its own duplicate
                best = block.argmax(axis=1)
                nearest[rows[start + at]] = rows[best]
                similarity[rows[start + at]] = block[at, best]
        found = np.flatnonzero(similarity >= NEAR_DUPLICATE)
        pairs = coo_array((np.ones(len(found)), (found, nearest[found])), (len(ids), len(ids)))
        n_groups, group = connected_components(pairs, directed=False)
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
            rejected = [row for row, ids in state.rejected.items() if category in ids]
            is_open[rejected] = False
            decided = np.where(np.isin(status, (CONFIRMED, MOVED)), state.category, NO_CATEGORY)
            labels = state.given_labels()
        if not len(members):
            raise UsageError("The category has no image to start from.")
        decided = np.where((decided == NO_CATEGORY) & (status == PREDICTED), labels, decided)
        examples = np.flatnonzero(decided == category)
        if len(examples) < MIN_DECIDED:
            examples = members
        others = [np.flatnonzero(decided == number) for number in np.unique(decided)]
        others = [rows for rows in others if decided[rows[0]] not in (NO_CATEGORY, category)]
        centers = [self._whitened[rows].mean(axis=0) for rows in (examples, *others)]
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
        images whose second category is the other one; None if both were created in the review.
        """
        with self.review.lock:
            state = self.review.state
            records = state.categories
            ids = state.category.copy()
            today = {c.category_id: state.today(c.category_id) for c in state.found}
            distinct = set(state.distinct)
        members = {
            number: _sample(rows, MAX_COMPARED) for number, rows in _by_category(ids).items()
        }
        novel = {
            number
            for number, record in records.items()
            if may_be_part(record.name, is_novel=record.is_novel)
        }
        suggested: list[dict[str, object]] = []
        for a, b, separation in close_pairs(self.vectors, members, novel, MAX_MERGES, distinct):
            hits = []
            for category, other in ((a, b), (b, a)):
                if other in today.values():
                    rows = members[category].tolist()
                    hits += [self._next_category(row, category, today) == other for row in rows]
            suggested.append(
                {
                    "a": a,
                    "b": b,
                    "separation": round(separation, 2),
                    "alike": separation < ONE_GROUP,
                    "second": round(float(np.mean(hits)), 3) if hits else None,
                }
            )
        return suggested

    def tree(self) -> dict[str, object]:
        """Return the tree of the categories that have images.

        Its leaves are categories; a merge has two nodes and a height, as in scipy's linkage.
        """
        with self.review.lock:
            members = _by_category(self.review.state.category)
        leaves = [*members]
        names = [str(number) for number in leaves]
        tree = CategoryTree.of_members(names, [*members.values()], self.vectors)
        merges = [
            [int(first), int(second), round(height, 4)]
            for first, second, height, _ in tree.linkage.tolist()
        ]
        return {"categories": leaves, "merges": merges}

    def _next_category(self, row: int, category: int, today: dict[int, int]) -> int | None:
        """Return the category that the run found for an image that people moved, else its second
        category."""
        state = self.review.state
        first = today.get(int(state.category_ids[row]), category)
        if first != category:
            return first
        second = state.columns["second_category"][row]
        return today.get(state.id_of.get(second, NO_CATEGORY))

    def targets(self, rows: list[int]) -> list[int]:
        """Return the categories nearest to some images, by the angle between means, nearest first.

        A category that all of the images are in is left out.
        """
        with self.review.lock:
            state = self.review.state
            ids = state.category.copy()
            candidates = [number for number in state.categories if (ids[rows] != number).any()]
        members = {number: np.flatnonzero(ids == number) for number in candidates}
        means = {
            number: self._mean_direction(_sample(some, MAX_MEAN))
            for number, some in members.items()
            if len(some)
        }
        center = self._mean_direction(np.array(rows))
        return sorted(means, key=lambda number: -float(means[number] @ center))

    def _mean_direction(self, rows: Ints) -> Floats:
        """Return the mean of images, as a vector of length 1."""
        mean = (np.asarray(self.vectors[rows], np.float64) / self._norms[rows][:, None]).mean(
            axis=0
        )
        direction: Floats = mean / max(float(np.linalg.norm(mean)), 1e-12)
        return direction

    def parts(self, category: int, n_parts: int) -> dict[str, list[list[int]]]:
        """Return the images of a category in parts along the tree, each most typical first.

        The first part keeps the category.
        """
        with self.review.lock:
            state = self.review.state
            rows = state.members(category)
            seq = state.seq
        most = min(MAX_PARTS, len(rows))
        if not 2 <= n_parts <= most:
            raise UsageError(
                f"A category of {len(rows):,} images can be split into 2 to {most} parts."
            )
        if (category, seq) not in self._linkage:
            self._linkage = {(category, seq): linkage_of(self.review.run, state, rows)}
        linkage = self._linkage[category, seq]
        parts = labeled_first(state, category, cut(linkage, rows, n_parts))
        return {"parts": [part[np.argsort(self._position[part])].tolist() for part in parts]}

    @cached_property
    def _position(self) -> Ints:
        """(N,) the position of each image in the typical order."""
        return np.argsort(self.review.state.typical_order)

    def paths(self, text: str) -> Ints:
        """Return the images whose path or note contains a text, ignoring case."""
        wanted = text.casefold()
        notes = self.review.state.notes
        return np.array(
            [
                row
                for row, path in enumerate(self.review.state.paths)
                if wanted in shown(path).casefold() or wanted in notes.get(row, "").casefold()
            ],
            dtype=np.int64,
        )


def _by_category(ids: Ints) -> dict[int, Ints]:
    """Return the rows of each category that has images, ascending."""
    numbers = np.unique(ids[ids != NO_CATEGORY]).tolist()
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], numbers)
    return dict(zip(numbers, np.split(order, starts)[1:], strict=True))


def _highest(values: Floats, rows: Ints, most: int) -> Ints:
    """Return the rows with the highest values, highest first, ties by row."""
    if len(rows) > most:
        rows = rows[np.argpartition(-values[rows], most - 1)[:most]]
        rows = np.sort(rows)
    return rows[np.argsort(-values[rows], kind="stable")]


def _sample(rows: Ints, most: int) -> Ints:
    """Return at most `most` rows, evenly spaced."""
    return rows if len(rows) <= most else rows[:: -(-len(rows) // most)]
