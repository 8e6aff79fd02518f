"""The state of a review: the result of a run with the actions of the log applied to it, and the
parts that a category may be split into.

The same log gives the same state. `shoal.review.effects` computes what an action changes.

The parts of a category are its images as the tree of the run would separate them. After some
actions a category may hold any images, so only they are merged, in the order of the tree, until as
many parts are left as wanted.

Shapes: N images.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import Bools, Ints
from shoal.errors import DataError, UsageError, first_few
from shoal.review.actions import Action, composed, encode
from shoal.runs import (
    MIXED_FROM,
    NO_CATEGORY,
    TABLE,
    Assignment,
    Run,
    check_columns,
    damaged,
    read_columns,
    read_vectors,
    reading,
)

# Two categories, the lower id first
Pair = tuple[int, int]

# Maximum size of a category for which a tree is computed if the run has none
MAX_WITHOUT_TREE = 4_000


@dataclass(frozen=True, slots=True)
class Record:
    """The current state of a category."""

    name: str
    # Whether the run was given no labels for it
    is_novel: bool
    # Whether a person gave it its name
    is_named: bool = False
    # The category that it was merged into, if any; it then no longer exists
    merged_into: int | None = None
    note: str = ""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Change:
    """New values of images and categories; an undo is a change that restores the previous
    values."""

    rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    # (3, n) new values of `State.images`
    values: Ints = field(default_factory=lambda: np.zeros((3, 0), np.int64))
    # New values by category; None removes the category
    records: dict[int, Record | None] = field(default_factory=dict)
    # (2, n) rows, and their new values of `State.rejected`
    rejected: Ints = field(default_factory=lambda: np.zeros((2, 0), np.int64))
    # Pairs of categories to mark as distinct, or to unmark
    distinct: frozenset[Pair] = frozenset()
    # Notes on images, by row; empty for none
    notes: dict[int, str] = field(default_factory=dict)


def by_category(ids: Ints, rows: Ints) -> dict[int, Ints]:
    """Return `rows` grouped by category, each group in the given order; `ids` (N,) is the category
    of each image."""
    rows = rows[np.argsort(ids[rows], kind="stable")]
    numbers, first = np.unique(ids[rows], return_index=True)
    # Without rows there are no categories, but np.split returns one part.
    return dict(zip(numbers.tolist(), np.split(rows, first[1:]), strict=False))


def typical_first(outlier_score: ArrayLike, confidence: ArrayLike) -> Ints:
    """Return (N,) all rows, most typical first: by outlier score, then confidence, then row."""
    return np.lexsort((-np.nan_to_num(confidence), np.nan_to_num(outlier_score)))


class State:
    """Images and categories of a run with the changes of its review, and the actions."""

    def __init__(self, run: Run) -> None:
        self.run = run
        columns = read_columns(Assignment, run.path / TABLE)
        self.paths: list[str] = columns.pop("path")
        # (N,) the category found by the run, -1 for none
        self.category_ids: Ints = columns.pop("category_id")
        # The other columns of assignments.csv, by name
        self.columns = columns
        # Run(run.path), because the categories of a ReviewedRun include the review
        # The categories found by the run, by id
        self.found = {category.category_id: category for category in Run(run.path).categories}
        check_columns(run.path, self.paths, self.category_ids.tolist(), columns["category"])
        self.row_of = dict(zip(self.paths, range(len(self.paths)), strict=True))
        self.id_of = {category.category: number for number, category in self.found.items()}
        # (3, N) the current state of the images; its rows are the next three attributes
        self.images: Ints = np.zeros((3, len(self.paths)), np.int64)
        self.category: Ints = self.images[0]
        self.category[:] = self.category_ids
        # Positions in `STATUSES`
        self.status: Ints = self.images[1]
        # The action that set the status; 0 for the run
        self.decided: Ints = self.images[2]
        self.records = {
            number: Record(category.category, category.is_novel)
            for number, category in self.found.items()
        }
        # Sets of categories that images were rejected from, each at its number
        self.rejections = [frozenset[int]()]
        self._numbers = {self.rejections[0]: 0}
        # (N,) the number of the categories that each image was rejected from; 0 for none
        self.rejected: Ints = np.zeros(len(self.paths), np.int64)
        self.distinct: set[Pair] = set()
        self.notes: dict[int, str] = {}
        # An id that no category has ever had
        self.next_id = max([NO_CATEGORY, *self.records]) + 1
        # All actions of the log; the one with seq i is actions[i - 1]
        self.actions: list[Action] = []
        self.changes: list[Change] = []
        self.undone: set[int] = set()
        # The values before each action, by its number; undo and redo have no entry
        self.before: dict[int, Change] = {}
        # The values that each of these actions set
        self.after: dict[int, Change] = {}
        self._reject_as_before()

    def _reject_as_before(self) -> None:
        """Reject images from the categories that they were rejected from in the review of an
        earlier run, if these still exist."""
        file = self.run.path / "changes.json"
        if file.is_file():
            with reading(file):
                for path, ids in self.run.json("changes")["cannot_links"].items():
                    if path in self.row_of:
                        present = frozenset(map(int, ids)).intersection(self.records)
                        self.rejected[self.row_of[path]] = self.number_of(present)

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def encoded_paths(self) -> list[str]:
        """The paths as JSON, for the lines of the log."""
        return [encode(path) for path in self.paths]

    @cached_property
    def is_labeled(self) -> Bools:
        """(N,) whether an image was given a label."""
        return np.array([bool(label) for label in self.columns["label_given"]], dtype=bool)

    @cached_property
    def _given_labels(self) -> tuple[list[str], Ints]:
        """The distinct given labels, and (N,) which of them each image has."""
        numbers: dict[str, int] = {}
        given = [numbers.setdefault(label, len(numbers)) for label in self.columns["label_given"]]
        return [*numbers], np.array(given, dtype=np.int64)

    @cached_property
    def checksum(self) -> str:
        """A checksum of paths, categories and assignments as found by the run."""
        digest = hashlib.sha256(np.ascontiguousarray(self.category_ids, dtype="<i8").tobytes())
        names = [f"{number}\0{category.category}" for number, category in self.found.items()]
        for texts in (self.paths, names):
            digest.update("\0".join(texts).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]

    @cached_property
    def typical_order(self) -> Ints:
        """(N,) all rows, most typical first."""
        return typical_first(self.columns["outlier_score"], self.columns["confidence"])

    @property
    def seq(self) -> int:
        """The number of the last action; 0 for none."""
        return len(self.actions)

    def action(self, seq: int) -> Action:
        if not 1 <= seq <= self.seq:
            raise UsageError(f"action {seq}: does not exist; the last action is {self.seq}")
        return self.actions[seq - 1]

    def last_done(self, by: str) -> int | None:
        """Return a person's last action that is still in effect; None if there is none."""
        for action in reversed(self.actions):
            if action.by == by and not action.of and action.seq not in self.undone:
                return action.seq
        return None

    def last_undone(self, by: str) -> int | None:
        """Return the action that a person undid last and can redo.

        None if the person has undone nothing, or has done something else since.
        """
        for action in reversed(self.actions):
            is_redone = action.of and action.of not in self.undone
            if action.by == by and action.kind != "redo" and not is_redone:
                return action.of or None
        return None

    def undo_or_redo(self, kind: str, by: str) -> Action:
        """Return an action that undoes a person's last action, or redoes the one undone last."""
        of = self.last_done(by) if kind == "undo" else self.last_undone(by)
        if of is None:
            raise UsageError(f"{kind}: {by} has nothing to {kind}")
        return Action(kind=kind, of=of)

    def rows(self, paths: Iterable[object]) -> Ints:
        """Return the rows of some paths; refuse paths that are not in the run."""
        listed = list(paths)
        unknown = [path for path in listed if not isinstance(path, str) or path not in self.row_of]
        if unknown:
            raise UsageError(
                f"images: not in this run: {first_few([repr(path) for path in unknown])}; "
                "give paths as in assignments.csv"
            )
        return np.array([self.row_of[str(path)] for path in listed], dtype=np.int64)

    @property
    def categories(self) -> dict[int, Record]:
        """The categories that were not merged into another, by id."""
        return {
            category: record
            for category, record in self.records.items()
            if record.merged_into is None
        }

    def members(self, category: int) -> Ints:
        return np.flatnonzero(self.category == category)

    def current(self, category: int) -> int:
        """Return the category itself or, if it was merged, the one that contains it now."""
        while (into := self.records[category].merged_into) is not None:
            category = into
        return category

    def existing(self, category: int) -> Record:
        """Return the record of a category; refuse one that does not exist or was merged."""
        record = self.records.get(category)
        if record is None:
            raise UsageError(f"category {category}: does not exist")
        if record.merged_into is not None:
            raise UsageError(f"{record.name}: was merged into {self.name(record.merged_into)}")
        return record

    def name(self, category: int) -> str:
        if category == NO_CATEGORY:
            return "no category"
        record = self.records.get(category)
        return f"category {category}" if record is None else record.name

    def find(self, name: str) -> int | None:
        """Return the id of the category with this name, compared in NFC form; None if there is
        none."""
        numbers = {composed(record.name): number for number, record in self.categories.items()}
        return numbers.get(composed(name))

    def number_of(self, rejections: frozenset[int]) -> int:
        """Return the number of a set of categories; a new set is added."""
        if rejections not in self._numbers:
            self._numbers[rejections] = len(self.rejections)
            self.rejections.append(rejections)
        return self._numbers[rejections]

    def is_rejected(self, rows: Ints, category: int) -> Bools:
        return np.array([category in ids for ids in self.rejections])[self.rejected[rows]]

    def is_second_rejected(self, row: int) -> bool:
        second = self.id_of.get(self.columns["second_category"][row])
        return second is not None and self.current(second) in self.currently_rejected(row)

    def currently_rejected(self, row: int) -> set[int]:
        rejected = self.rejections[self.rejected[row]]
        return {self.current(number) for number in rejected if number in self.records}

    def current_by_name(self) -> dict[str, int]:
        """Return, for each category name of the run (and so for each given label), its current
        category.

        That is the category itself or the one it was merged into. If the category was split and
        renamed, and one of its parts was given the old name, that part is returned.
        """
        origin: dict[int, int] = {}  # of each part, the category that was split first
        for action in self.actions:
            if action.kind == "split":
                for group in action.groups:
                    origin[group.category] = origin.get(action.category, action.category)
        by_name = {composed(record.name): number for number, record in self.categories.items()}
        named = {}
        for name, number in self.id_of.items():
            part = by_name.get(composed(name), NO_CATEGORY)
            named[name] = part if origin.get(part) == number else self.current(number)
        return named

    def given_labels(self) -> Ints:
        """Return (N,) the current category of the label that each image was given; -1 for none."""
        named = self.current_by_name()
        labels, given = self._given_labels
        return np.array([named.get(name, NO_CATEGORY) for name in labels], dtype=np.int64)[given]

    def commit(self, action: Action, change: Change) -> None:
        """Add an action with the change that `effects.prepare` returned for it."""
        assert action.seq == self.seq + 1
        self.actions.append(action)
        self.changes.append(change)
        if action.kind == "undo":
            self.undone.add(action.of)
        else:
            self.undone.discard(action.of)
            seq = action.of or action.seq
            self.before[seq] = self.current_values(change)
            self.after[seq] = change
        self.images[:, change.rows] = change.values
        self.rejected[change.rejected[0]] = change.rejected[1]
        self.notes |= change.notes
        self.distinct ^= change.distinct
        for category, record in change.records.items():
            if record is None:
                del self.records[category]
            else:
                self.records[category] = record
                self.next_id = max(self.next_id, category + 1)

    def current_values(self, change: Change) -> Change:
        """Return the change that restores what a change sets to the current values."""
        return Change(
            rows=change.rows,
            values=self.images[:, change.rows],
            records={category: self.records.get(category) for category in change.records},
            rejected=np.stack([change.rejected[0], self.rejected[change.rejected[0]]]),
            distinct=change.distinct,
            notes={row: self.notes.get(row, "") for row in change.notes},
        )

    def describe(self, seq: int) -> str:
        """Return a description of an action, e.g. 'merge by ann (action 3)'."""
        action = self.action(seq)
        return f"{action.kind} by {action.by} (action {seq})"


def parts_of(state: State, category: int, n_parts: SupportsIndex) -> list[Ints]:
    """Return the rows of a category, split into `n_parts` parts by its tree.

    The first part keeps the id and name of the category.
    """
    rows = state.members(category)
    if n_parts not in range(2, len(rows) + 1):
        raise UsageError(
            f"parts: found {n_parts}, expected 2 to {len(rows)}, the number of its images"
        )
    run = state.run
    if run.has("tree.npy"):
        parts = cut(_merges(run, len(state)), rows, int(n_parts))
    elif run.has("embeddings.npy") and len(rows) <= MAX_WITHOUT_TREE:
        from scipy.cluster.hierarchy import ward

        vectors = read_vectors(run.path / "embeddings.npy", len(state))
        merges: Ints = ward(vectors[rows])[:, :2].astype(np.int64)
        parts = [rows[part] for part in cut(merges, np.arange(len(rows)), int(n_parts))]
    else:
        raise DataError(
            f"{run.path}: has no tree to split {len(rows):,} images by; choose images instead"
        )
    return labeled_first(state, category, parts)


def proposed_split(state: State, category: int) -> tuple[Ints, Ints] | None:
    """Return the rows that would stay and leave if a category is mixed.

    None if the run does not consider it mixed, or if one of both sides is empty after the review.
    """
    if category not in state.found or state.found[category].mixed_probability < MIXED_FROM:
        return None
    rows = state.members(category)
    is_apart = np.asarray(state.columns["is_apart"], dtype=bool)[rows]
    if is_apart.all() or not is_apart.any():
        return None
    return rows[~is_apart], rows[is_apart]


def labeled_first(state: State, category: int, parts: Sequence[Ints]) -> list[Ints]:
    """Return parts of a category, those with most of its given labels first."""
    is_labeled = state.given_labels() == category
    return sorted(parts, key=lambda part: -int(is_labeled[part].sum()))


def _merges(run: Run, n_leaves: int) -> Ints:
    """Return (N - 1, 2) the two nodes of each merge in tree.npy."""
    tree = run.array("tree")
    is_linkage = tree.shape == (n_leaves - 1, 4) and tree.dtype.kind == "f"
    nodes = np.arange(n_leaves, 2 * n_leaves - 1)[:, None]  # (N - 1, 1), each joins lower ones
    if not is_linkage or not ((tree[:, :2] >= 0) & (tree[:, :2] < nodes)).all():
        raise damaged(run.path / "tree.npy", f"its rows are not the merges of {n_leaves:,} images")
    return np.asarray(tree[:, :2], np.int64)


def cut(merges: Ints, leaves: Ints, n_parts: int) -> list[Ints]:
    """Return some leaves of a tree in the parts that remain before its last merges, largest first.

    A merge joins two nodes: numbers up to `len(merges)` are leaves, the following ones merges.
    """
    groups = {leaf: [leaf] for leaf in leaves.tolist()}
    for node, (first, second) in enumerate(merges.tolist(), start=len(merges) + 1):
        if len(groups) == n_parts:
            break
        group = groups.pop(first, []) + groups.pop(second, [])
        if group:
            groups[node] = group
    parts = [np.sort(group) for group in groups.values()]
    return sorted(parts, key=lambda part: (-len(part), int(part[0])))
