"""The state of a review: the log replayed over what a run has found. N images; writes no file.

The same log gives the same state. What an action would change is in `shoal.review.effects`.
"""

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shoal.arrays import Floats, Ints
from shoal.errors import UsageError
from shoal.review.actions import MAX_NAME, NO_CATEGORY, Entry, composed
from shoal.review.history import History
from shoal.runs import Run, check_columns, damaged, read_assignment_columns
from shoal.words import first_few

Pair = tuple[int, int]
"""Two categories, the lower id first."""


class Conflict(UsageError):
    """An action that does not fit what somebody else has done meanwhile."""


class Blocked(Conflict):
    """An undo or redo that is refused because of what was done later, at `seq` at the latest."""

    def __init__(self, reason: str, seq: int) -> None:
        super().__init__(reason)
        self.seq = seq


@dataclass(frozen=True, slots=True)
class Record:
    """A category as it stands."""

    name: str
    is_novel: bool
    """Whether the run was given no label of it."""
    is_named: bool = False
    """Whether a person gave it its name."""
    merged_into: int | None = None
    """Where its images went; such a category has ended."""
    owner: int = 0
    """The action that made it what it is; 0 for the run."""


@dataclass(frozen=True, eq=False, slots=True)
class Images:
    """What is known of n images."""

    category: Ints
    status: Ints
    """Places in `STATUSES`."""
    decided: Ints
    """The action that gave each its status; 0 for the run."""
    owner: Ints
    """The last action that counts for each; 0 for the run."""
    version: Ints
    """The last action that changed each at all, undoing included."""

    def take(self, rows: Ints) -> "Images":
        """A copy of some of them."""
        return Images(
            self.category[rows],
            self.status[rows],
            self.decided[rows],
            self.owner[rows],
            self.version[rows],
        )

    def put(self, rows: Ints, values: "Images", seq: int) -> None:
        """Write new values for some, as the action `seq` does."""
        self.category[rows] = values.category
        self.status[rows] = values.status
        self.decided[rows] = values.decided
        self.owner[rows] = values.owner
        self.version[rows] = seq


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Change:
    """New values for some images and categories; undoing is a change with the values from
    before."""

    rows: Ints
    values: Images
    records: dict[int, Record | None] = field(default_factory=dict)
    """None: the category is no more, and its id was never given."""
    rejected: dict[int, frozenset[int]] = field(default_factory=dict)
    """By row, the categories that an image does not belong to."""
    distinct: dict[Pair, bool] = field(default_factory=dict)
    """Whether two categories are said not to be the same."""


class State:
    """The images and categories of a run with what people have changed of them, and the history."""

    def __init__(self, run: Run) -> None:
        columns = read_assignment_columns(run.path)
        self.paths: list[str] = columns.pop("path")
        self.category_ids: Ints = columns.pop("category_id")
        """(N,) the category that the run has found, -1 for none."""
        self.columns = columns
        """The other columns of assignments.csv, by name."""
        self.found = Run(run.path).categories  # what a reviewed run shows has been changed
        """The categories that the run has found."""
        check_columns(run.path, self.paths, self.category_ids.tolist(), columns["category"])
        self.row_of = dict(zip(self.paths, range(len(self.paths)), strict=True))
        self.id_of = {category.category: category.category_id for category in self.found}
        self.mixed_probability = {one.category_id: one.mixed_probability for one in self.found}
        none = np.zeros(len(self.paths), np.int64)
        self.images = Images(self.category_ids.copy(), none, none.copy(), none.copy(), none.copy())
        self.records = {one.category_id: Record(one.category, one.is_novel) for one in self.found}
        self.versions = dict.fromkeys(self.records, 0)
        """The last action that changed a category at all."""
        self.rejected = _cannot_links(run, self)
        """By row, the categories that an image does not belong to."""
        self.distinct: set[Pair] = set()
        """The categories that people said are not the same."""
        self.distinct_versions: dict[Pair, int] = {}
        """The last action that changed whether that is said of a pair."""
        self.next_id = max([NO_CATEGORY, *self.records]) + 1
        """An id that no category ever had."""
        self.history = History()
        self._before: dict[int, Change] = {}
        """By action, the values that undoing it puts back."""

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def checksum(self) -> str:
        """Equal for the same images in the same categories, whatever else the run holds."""
        digest = hashlib.sha256(np.ascontiguousarray(self.category_ids, dtype="<i8").tobytes())
        names = [f"{one.category_id}\0{one.category}" for one in self.found]
        for texts in (self.paths, names):
            digest.update("\0".join(texts).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]

    @cached_property
    def typical_order(self) -> Ints:
        """(N,) all rows, the most typical first: by outlier score, then confidence, then row."""
        outlier: Floats = np.nan_to_num(self.columns["outlier_score"], nan=0.0)
        confidence: Floats = np.nan_to_num(self.columns["confidence"], nan=0.0)
        return np.lexsort((np.arange(len(self)), -confidence, outlier))

    @property
    def entries(self) -> list[Entry]:
        """The entry with seq i is entries[i - 1]."""
        return self.history.entries

    @property
    def seq(self) -> int:
        """The number of the last action; 0 for none."""
        return len(self.entries)

    def entry(self, seq: int) -> Entry:
        """The entry with this number."""
        return self.history.entry(seq)

    def before(self, seq: int) -> Change:
        """What an action that neither undoes nor redoes has changed, as it was before."""
        return self._before[seq]

    def rows(self, paths: Iterable[object]) -> Ints:
        """The rows of some paths; a path that is no image's is an error."""
        listed = list(paths)
        unknown = [path for path in listed if not isinstance(path, str) or path not in self.row_of]
        if unknown:
            raise UsageError(
                f"images: not in this run: {first_few([repr(path) for path in unknown])}; "
                "give paths as assignments.csv has them"
            )
        return np.array([self.row_of[str(path)] for path in listed], dtype=np.int64)

    @property
    def categories(self) -> dict[int, Record]:
        """The categories that have not ended, by id."""
        return {
            category: record
            for category, record in self.records.items()
            if record.merged_into is None
        }

    def members(self, category: int) -> Ints:
        """The rows of a category, ascending."""
        return np.flatnonzero(self.images.category == category)

    def today(self, category: int) -> int:
        """The category in which one goes on that may have been merged, more than once perhaps."""
        while (into := self.records[category].merged_into) is not None:
            category = into
        return category

    def living(self, category: int) -> Record:
        """A category that has not ended."""
        record = self.records.get(category)
        if record is None:
            raise Conflict(f"category {category}: there is none")
        if record.merged_into is not None:
            into = self.name(record.merged_into)
            raise Conflict(f"{record.name}: was merged into {into} (action {record.owner})")
        return record

    def name(self, category: int) -> str:
        """What a category is called, whether it has ended or not."""
        record = self.records.get(category)
        return f"category {category}" if record is None else record.name

    def find(self, name: str) -> int | None:
        """The id of the category with this name, however its accents are written."""
        wanted = composed(name)
        for number, record in self.categories.items():
            if composed(record.name) == wanted:
                return number
        return None

    def free_name(self, name: str) -> str:
        """A name like another that no category has or had."""
        taken = {record.name for record in self.records.values()}
        numbered = (f"{name[: MAX_NAME - 10]} {number}" for number in itertools.count(2))
        return next(free for free in numbered if free not in taken)

    def is_second_forbidden(self, row: int) -> bool:
        """Whether people threw an image out of what is its second choice."""
        second = self.id_of.get(self.columns["second_category"][row])
        if second is None:
            return False
        refused = self.rejected.get(row, frozenset())
        return self.today(second) in {self.today(one) for one in refused if one in self.records}

    def named_today(self) -> dict[str, int]:
        """The category that each name of the run, and so each given label, stands for today.

        That is the category itself, renamed perhaps, or what it was merged into; but where people
        have given another name to it and the old one to a part of it, that part.
        """
        origin: dict[int, int] = {}  # of each part, the category that was split first
        for entry in self.entries:
            if entry.action.kind == "split":
                source = entry.action.category
                for group in entry.action.groups:
                    origin[group.category] = origin.get(source, source)
        by_name = {composed(record.name): number for number, record in self.categories.items()}
        named = {}
        for name, number in self.id_of.items():
            part = by_name.get(composed(name))
            if part is not None and origin.get(part) == number:
                named[name] = part
            else:
                named[name] = self.today(number)
        return named

    def given_labels(self) -> Ints:
        """(N,) the category that the label of each image stands for today; -1 for none."""
        named = self.named_today()
        given = self.columns["label_given"]
        return np.array([named.get(name, NO_CATEGORY) for name in given], dtype=np.int64)

    def commit(self, entry: Entry, change: Change) -> None:
        """Let an entry count, with the change that `prepare` gave."""
        seq = entry.seq
        assert seq == self.seq + 1
        if counts := self.history.add(entry):
            none: frozenset[int] = frozenset()
            self._before[counts] = Change(
                rows=change.rows,
                values=self.images.take(change.rows),
                records={category: self.records.get(category) for category in change.records},
                rejected={row: self.rejected.get(row, none) for row in change.rejected},
                distinct={pair: pair in self.distinct for pair in change.distinct},
            )
        self.images.put(change.rows, change.values, seq)
        self.rejected |= change.rejected
        for pair, is_distinct in change.distinct.items():
            self.distinct_versions[pair] = seq
            self.distinct.discard(pair)
            if is_distinct:
                self.distinct.add(pair)
        for category, record in change.records.items():
            self.versions[category] = seq
            if record is None:
                del self.records[category]
            else:
                self.records[category] = record
                self.next_id = max(self.next_id, category + 1)

    def in_words(self, seq: int) -> str:
        """An action and who did it."""
        if seq < 1:
            return "the run"
        entry = self.entry(seq)
        return f"{entry.action.kind} by {entry.by} (action {seq})"


def _cannot_links(run: Run, state: State) -> dict[int, frozenset[int]]:
    """By row, the categories that images were thrown out of in the review before the run.

    Of those that are still there.
    """
    if not run.has("changes.json"):
        return {}
    try:
        rejected = {}
        for path, ids in run.json("changes")["cannot_links"].items():
            there = frozenset(map(int, ids)) & state.records.keys()
            if path in state.row_of and there:
                rejected[state.row_of[path]] = there
        return rejected
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(
            run.path / "changes.json", "cannot_links: expected lists of ids by image"
        ) from error
