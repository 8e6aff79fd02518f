"""What the page looks up: similar images, candidates to grow a category by, merges, parts, paths,
the map.

Everything is read off the embeddings of the run, (N, D); a run without them says so.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from shoal.arrays import Floats, Ints
from shoal.errors import UsageError
from shoal.report.suggestions import ONE_GROUP, close_pairs, may_be_part
from shoal.review.actions import CONFIRMED, MOVED, NO_CATEGORY, PREDICTED, REJECTED
from shoal.review.parts import cut, labeled_first, linkage_of
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run, read_vectors
from shoal.text import shown

MAX_FOUND = 2_000
"""Images that a search gives back."""

MAX_CANDIDATES = 20_000
"""Images that a category can grow by at once."""

MAX_COMPARED = 400
"""Images of a category that are compared with those of another."""

MAX_PARTS = 20
MAX_MERGES = 50
"""Pairs of categories that are suggested at once, not counting those that people put apart."""

ROWS_AT_ONCE = 1 << 16
MIN_DECIDED = 3
"""Images that somebody decided on, from which on the others of a category do not count as its
center."""


Linkage = np.ndarray[tuple[int, int], np.dtype[np.int64]]


class Search:
    """Looks things up in one run."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self._linkage: dict[tuple[int, int], Linkage] = {}
        """The last tree, which the slider of a split cuts again, by its category and state."""

    @cached_property
    def vectors(self) -> Floats:
        """(N, D) the embeddings, mapped into memory."""
        return read_vectors(self.review.run.path / "embeddings.npy", len(self.review.state))

    @cached_property
    def _lengths(self) -> Floats:
        """(N,) of the embeddings; never 0."""
        return np.maximum(self._over_rows(lambda block: np.linalg.norm(block, axis=1)), 1e-12)

    def _over_rows(self, compute: Callable[[Floats], Floats]) -> Floats:
        dtype = np.result_type(self.vectors, np.float32)  # float16 is stored, not computed in
        starts = range(0, len(self.vectors), ROWS_AT_ONCE)
        blocks = (self.vectors[start : start + ROWS_AT_ONCE] for start in starts)
        return np.concatenate([compute(np.asarray(block, dtype)) for block in blocks])

    def likeness(self, center: Floats) -> Floats:
        """(N,) the cosine of every image with a direction."""
        direction = center / max(float(np.linalg.norm(center)), 1e-12)
        return self._over_rows(lambda block: block @ direction.astype(block.dtype)) / self._lengths

    def similar(self, row: int) -> dict[str, list[int]]:
        """The images most like one, itself first."""
        likeness = self.likeness(np.asarray(self.vectors[row], np.float64))
        likeness[row] = np.inf
        return {"rows": _highest(likeness, np.arange(len(likeness)), MAX_FOUND).tolist()}

    def candidates(self, category: int) -> dict[str, list[float]]:
        """Images outside of a category that may belong to it, the most like it first.

        Those that nobody has decided on, and those thrown out of another category, which need one.
        A flagged image waits for a person to look at it; what was confirmed or moved has its
        category.
        """
        with self.review.lock:
            state = self.review.state
            members = state.members(category)
            status = state.images.status.copy()
            is_open = (state.images.category != category) & np.isin(status, (PREDICTED, REJECTED))
            refused = [row for row, ids in state.rejected.items() if category in ids]
            is_open[refused] = False
        own = members[np.isin(status[members], (CONFIRMED, MOVED))]
        if len(own) < MIN_DECIDED:
            own = members
        if not len(own):
            raise UsageError("The category has no image to grow from.")
        some = _some(own, ROWS_AT_ONCE)
        units = np.asarray(self.vectors[some], np.float64) / self._lengths[some][:, None]
        likeness = self.likeness(units.mean(axis=0))
        given = self.review.state.columns["label_given"]
        unlabeled = [row for row in np.flatnonzero(is_open).tolist() if not given[row]]
        rows = _highest(likeness, np.array(unlabeled, np.int64), MAX_CANDIDATES)
        return {"rows": rows.tolist(), "likeness": np.round(likeness[rows], 3).tolist()}

    def merges(self) -> list[dict[str, object]]:
        """The closest pairs of categories, with the evidence.

        Their separation, whether they look like one, and `second`, the share of their images whose
        next choice is the other one; None where people made both: the run cannot have chosen
        either.
        """
        with self.review.lock:
            state = self.review.state
            records = state.categories
            ids = state.images.category.copy()
            today = {c.category_id: state.today(c.category_id) for c in self.review.state.found}
            apart = state.distinct
        order = np.argsort(ids, kind="stable")
        starts = np.searchsorted(ids[order], [*records]).tolist()
        ends = np.searchsorted(ids[order], [*records], side="right").tolist()
        members = {
            number: _some(order[start:end], MAX_COMPARED)
            for number, start, end in zip(records, starts, ends, strict=True)
        }
        novel = {
            number
            for number, record in records.items()
            if may_be_part(record.name, is_novel=record.is_novel)
        }
        suggested: list[dict[str, object]] = []
        for a, b, gap in close_pairs(self.vectors, members, novel, MAX_MERGES, apart):
            hits = []
            for own, other in ((a, b), (b, a)):
                if other in today.values():
                    rows = members[own].tolist()
                    hits += [self._next_choice(row, own, today) == other for row in rows]
            suggested.append(
                {
                    "a": a,
                    "b": b,
                    "separation": round(gap, 2),
                    "alike": gap < ONE_GROUP,
                    "second": round(float(np.mean(hits)), 3) if hits else None,
                }
            )
        return suggested

    def _next_choice(self, row: int, now: int, today: dict[int, int]) -> int | None:
        """Where the run puts an image that people put elsewhere, or else its second choice.

        Categories of today.
        """
        answer = self.review.state
        first = today.get(int(answer.category_ids[row]), now)
        if first != now:
            return first
        second = answer.columns["second_category"][row]
        return today.get(answer.id_of.get(second, NO_CATEGORY))

    def parts(self, category: int, n_parts: int) -> dict[str, list[list[int]]]:
        """The images of a category as the tree parts them, most typical first.

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
        """All images whose path holds a text, whatever its case."""
        wanted = text.casefold()
        is_found = [wanted in shown(path).casefold() for path in self.review.state.paths]
        return np.flatnonzero(is_found)

    @cached_property
    def map(self) -> bytes:
        """Where a sample of the images lies.

        How many (u4), their rows (u4 each), then x and y (u2 each, 0 … 65535).
        """
        from shoal.report.map import (  # scipy, which nothing else needs
            PCA_IMAGES,
            kept_layouts,
            principal_components,
            stratified,
        )

        kept = kept_layouts(ReviewedRun.of(Run(self.review.run.path)))
        if kept:
            rows = kept[-1].rows
            points = kept[-1].points
        else:
            rows = stratified(self.review.state.category_ids, PCA_IMAGES)
            points = principal_components(self.vectors[rows], 2)
        low = points.min(axis=0)
        high = points.max(axis=0)
        scaled = np.rint((points - low) / np.maximum(high - low, 1e-12) * 65535).astype("<u2")
        scaled[:, 1] = 65535 - scaled[:, 1]  # a page counts downward
        numbers = np.array([len(rows), *rows], "<u4")
        return numbers.tobytes() + np.ascontiguousarray(scaled.T).tobytes()


def _highest(values: Floats, rows: Ints, most: int) -> Ints:
    """The rows with the highest values, highest first, ties by row."""
    if len(rows) > most:
        rows = rows[np.argpartition(-values[rows], most - 1)[:most]]
        rows = np.sort(rows)
    return rows[np.argsort(-values[rows], kind="stable")]


def _some(rows: Ints, most: int) -> Ints:
    return rows if len(rows) <= most else rows[:: -(-len(rows) // most)]
