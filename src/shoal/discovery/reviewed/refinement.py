"""A discovery after a review: what people decided goes in as labels, cannot-links, names and ids.

`shoal discover photos/ --review runs/photos` and `shoal.refine`. The new run is one of its own: the
reviewed one stays.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED
from shoal.data.collection import Collection, PreviousCategories
from shoal.data.readers import read_collection
from shoal.data.readers.labels import MAX_ABSENT_SHARE
from shoal.data.readers.originals import is_stored
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.image_source import ImageSource
from shoal.discovery.reporter import Reporter
from shoal.discovery.reviewed.reviewed_clusters import n_reviewed
from shoal.errors import DataError, UsageError
from shoal.review.decisions import Decisions, decisions_of
from shoal.review.log import FILE
from shoal.review.replay import replay_onto, replay_review
from shoal.review.review import Review, checked_who, has_review
from shoal.review.state import State
from shoal.runs import Run, read_assignment_columns
from shoal.text import shown
from shoal.words import count, first_few, plural

MAX_LISTED = 5
"""How many categories are named in words."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Refinement:
    """A reviewed run, and what its review says to the next one."""

    run: Run
    decisions: Decisions
    note: str = ""
    """What of the log does not count."""

    @classmethod
    def open(cls, path: Path | str) -> "Refinement":
        """Read the review of a finished run that was made of images."""
        run = Run.open(path)
        if "fingerprint" not in run.provenance:
            raise UsageError(
                f"{run.path}: was made from ready embeddings, so nothing can be trained again; "
                "cluster them anew with the labels of `shoal export --to csv`"
            )
        if not has_review(run.path):
            raise UsageError(
                f"{run.path}: nobody has reviewed it (no {FILE}); `shoal review {run.path}` does"
            )
        review = Review(run)
        return cls(run=run, decisions=decisions_of(review.state), note=review.log.note)

    @property
    def config(self) -> Path:
        """The settings of the reviewed run, which hold for the next one where nobody says
        otherwise."""
        # Refused as a file of a run, not as one that a user gave.
        self.run.config_as(DiscoverySettings)
        return self.run.path / "config.yaml"

    @property
    def next_folder(self) -> Path:
        """The default folder of the next run: runs/photos-2 after runs/photos, runs/photos-3 after
        that."""
        folder = self.run.path if self.run.path.name else self.run.path.resolve()
        numbered = re.fullmatch(r"(.+)-(\d+)", folder.name)
        if numbered and self.run.has("changes.json"):
            return folder.with_name(f"{numbered[1]}-{int(numbered[2]) + 1}")
        return folder.with_name(f"{folder.name}-2")

    def check_out(self, out: Path, *, resume: bool) -> None:
        """Refuse to write over the reviewed run, and over another review."""
        if out.resolve() == self.run.path.resolve():
            raise UsageError(f"{out}: is the reviewed run itself; choose another --out")
        if has_review(out) and not resume:
            raise UsageError(
                f"{out}: holds a review of its own ({FILE}); move it away, or choose another --out"
            )

    def images(self, *, allow_missing: bool = False) -> Collection:
        """The images of the reviewed run, where they were; `allow_missing` as `read_collection`."""
        where = str(self.run.provenance.get("root") or "")
        paths = self._paths()
        if is_stored(where):
            there = read_collection(where, False, allow_missing=allow_missing)
            wanted = set(paths)
            return there.subset(np.array([name in wanted for name in there.names]))
        root = Path(where)
        if not root.name or not root.is_dir():
            what = f"there is no folder {root}" if root.name else "its images were in memory"
            raise DataError(f"{self.run.path}: {what}; give the images again")
        return Collection(
            names=tuple(paths),
            labels=np.full(len(paths), UNLABELED),
            classes=(),
            root=root,
            layout=f"the images of {self.run.path}",
            folders=tuple(self.run.provenance.get("folders") or ()),
        )

    def collection(self, images: Collection, *, allow_missing: bool = False) -> Collection:
        """The same images with the labels and cannot-links of the review.

        Where images come with labels, these count instead of those that the reviewed run was given.
        """
        self._check_same(images, allow_missing=allow_missing)
        decisions = self.decisions
        names = dict(decisions.names)
        next_id = decisions.next_id
        known = list(decisions.known)
        own: dict[int, int] = {}  # the id of each class that the images came with
        by_name = {name: number for number, name in names.items()} | decisions.called
        for label, name in enumerate(images.classes):
            if name not in by_name:
                by_name[name] = next_id
                names[next_id] = name
                next_id += 1
            own[label] = by_name[name]
            if own[label] not in known:
                known.append(own[label])
        given = None
        if images.n_labeled:
            labels = zip(images.names, images.labels.tolist(), strict=True)
            given = {name: own[label] for name, label in labels if label != UNLABELED}
        ids = [decisions.label(name, given) for name in images.names]
        position_of = {number: at for at, number in enumerate(known)}
        return replace(
            images,
            labels=np.array([position_of.get(number, UNLABELED) for number in ids]),
            classes=tuple(names[number] for number in known),
            layout=f"{images.layout}, with the review of {self.run.path}",
            earlier=PreviousCategories(
                class_ids=tuple(known),
                names=names,
                categories=decisions.categories,
                apart=decisions.apart,
                next_id=next_id,
                taken=decisions.taken,
            ),
        )

    def changed_labels(self, now: Mapping[str, str]) -> list[dict[str, str]]:
        """The given labels of the reviewed run that are others now; `now` are names by path."""
        names = self.decisions.names
        given = {path: names[number] for path, number in self.decisions.given.items()}
        return [
            {"path": path, "given": name, "now": now[path]}
            for path, name in sorted(given.items())
            if path in now and now[path] != name
        ]

    def settings(
        self,
        chosen: DiscoverySettings,
        collection: Collection,
        reporter: Reporter,
        *,
        is_asked: bool,
    ) -> DiscoverySettings:
        """The settings, in which a number of categories may be wrong after the review; says so.

        One that is asked for now (`is_asked`) is wrong below the known ones; one that the reviewed
        run was given, where people left another. Where the review decided every image and none is
        asked for, it is refused.
        """
        if collection.n_labeled == len(collection) and (chosen.n_clusters is None or not is_asked):
            raise DataError(
                f"{self.run.path}: the review decided every image, so nothing is left to discover; "
                f"export it, with `shoal export {self.run.path} --to imagefolder --out sorted/` "
                "for "
                "example"
            )
        notes = [self.note, _note_changed_labels(self.changed_labels(_label_names(collection)))]
        if chosen.is_trained:
            notes.append(_note_unlabeled(collection))
        for note in notes:
            if note:
                reporter.say(note)
        n_known = int((collection.class_sizes > 0).sum())
        n_left = n_reviewed(collection)
        number = chosen.n_clusters
        if number is None or number == n_left or (is_asked and number >= n_known):
            return chosen
        new = n_known if is_asked else n_left
        reporter.say(f"note: {new} categories instead of {number}, as the review left them")
        return replace(chosen, n_clusters=new)

    def conclude(self, run: Run, reporter: Reporter) -> None:
        """Write what has changed into the new run, and the review anew: nothing is asked again."""
        answer = State(run)
        log = self.run.path / FILE
        there = {category.category_id for category in answer.found}
        living = {number: number for number in self.decisions.names} | self.decisions.ended
        ids = {old: number for old, number in living.items() if number in there}
        misfits = replay_onto(State(run), log, ids)
        lost = [misfit.in_words() for misfit in misfits]
        labels = dict(zip(answer.paths, answer.columns["label_given"], strict=True))
        changed = self.changed_labels(labels)
        changes = compare_answers(self.run.path, self.decisions, answer, lost, changed)
        run.write_json("changes", changes)
        if not has_review(run.path):  # one that was killed may have written it
            replay_review(log, run, by=checked_who(None), ids=ids)
        for line in changes_in_words(changes):
            reporter.say(line)

    def _paths(self) -> list[str]:
        """The images of the reviewed run."""
        paths: list[str] = read_assignment_columns(self.run.path, ["path"])["path"]
        return paths

    def _check_same(self, images: Collection, *, allow_missing: bool) -> None:
        paths = self._paths()
        here = set(images.names)
        missing = [path for path in paths if path not in here]
        what = (
            f"{self.run.path}: {len(missing):,} of its {len(paths):,} images are not here, such as "
            f"{missing[:1]}"
        )
        if len(missing) == len(paths):
            raise DataError(
                f"{what}; it is a review of other images; give the images that run was made of"
            )
        if len(missing) > max(1, MAX_ABSENT_SHARE * len(paths)) and not allow_missing:
            raise DataError(
                f"{what}; give all images of that run, or go on without these with --allow-missing"
            )


def prepare_refinement(
    reviewed: Path,
    source: ImageSource,
    settings: Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None,
    resume: bool,
    reporter: Reporter,
) -> tuple[Collection, Path, DiscoverySettings, Refinement]:
    """The images with the labels of the review, where to write, and the settings.

    `settings` are the arguments of `choose_settings`; those not given are of that run.
    """
    refinement = Refinement.open(reviewed)
    folder = refinement.next_folder if out is None else Path(out)
    refinement.check_out(folder, resume=resume)
    if settings.get("config") or settings.get("recipe"):
        chosen = choose_settings(**settings)
    else:
        chosen = choose_settings(**{**settings, "config": refinement.config})
    if source.is_given:
        images = source.read()
    else:
        images = refinement.images(allow_missing=source.allow_missing)
    collection = refinement.collection(images, allow_missing=source.allow_missing)
    is_asked = any(settings.get(name) is not None for name in ("n_clusters", "config", "recipe"))
    is_asked = is_asked or "n_clusters" in (settings.get("changes") or {})
    return (
        collection,
        folder,
        refinement.settings(chosen, collection, reporter, is_asked=is_asked),
        refinement,
    )


def _label_names(collection: Collection) -> dict[str, str]:
    """The label of each image by name, "" for none."""
    names = [*collection.classes, ""]  # the last one for unlabeled images
    return {
        path: names[label]
        for path, label in zip(collection.names, collection.labels.tolist(), strict=True)
    }


def _note_changed_labels(changed: Sequence[Mapping[str, str]]) -> str:
    """Say which given labels of the reviewed run are others now."""
    if not changed:
        return ""
    n = len(changed)
    listed = [
        f"{shown(one['path'])} ({one['given']}, now {one['now'] or 'unlabeled'})" for one in changed
    ]
    return (
        f"note: {count(n, 'given label')} {plural(n, 'is')} changed by the review or by new "
        f"labels: {first_few(listed, MAX_LISTED)}; changes.json lists all"
    )


def _note_unlabeled(collection: Collection) -> str:
    """Say which categories are known by name alone: training may find none of their images."""
    sizes = collection.class_sizes
    empty = [name for name, size in zip(collection.classes, sizes, strict=True) if not size]
    if not empty:
        return ""
    which = first_few(empty, MAX_LISTED)
    n = len(empty)
    return (
        f"note: {count(n, 'known category')} {plural(n, 'has')} no labeled or confirmed image "
        f"({which}): training may leave none there; confirm some first, or go on without training"
    )


def compare_answers(
    source: Path,
    decisions: Decisions,
    answer: State,
    misfits: Sequence[str],
    changed_labels: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """The content of changes.json: the reviewed categories beside those of the new answer, by
    id."""
    before = decisions.categories
    now = dict(zip(answer.paths, answer.category_ids.tolist(), strict=True))
    names = {**decisions.names, **{one.category_id: one.category for one in answer.found}}
    sizes_before = Counter(before.values())
    sizes = Counter(now.values())
    same = Counter(number for path, number in now.items() if before.get(path) == number)
    kept = []
    new = []
    gone = []
    for number, name in names.items():
        category = {"category_id": number, "category": name}
        was = {"before": sizes_before[number]}
        is_now = {"now": sizes[number]}
        if sizes_before[number] and sizes[number]:
            kept.append({**category, **was, **is_now, "same": same[number]})
        elif sizes[number]:
            new.append({**category, **is_now})
        elif sizes_before[number]:
            gone.append({**category, **was})
    moved = [
        {"path": path, "from": before[path], "to": number}
        for path, number in now.items()
        if path in before and before[path] != number
    ]
    kept_out = {path: sorted(ids) for path, ids in sorted(decisions.apart.items()) if path in now}
    return {
        "review_of": str(source),
        "n_labels": sum(map(bool, answer.columns["label_given"])),
        "n_changed_labels": len(changed_labels),
        "n_decided": sum(path in now for path in decisions.labels),
        "became_known": [decisions.names[number] for number in decisions.became_known],
        "n_categories": {"before": len(sizes_before), "now": len(sizes)},
        "kept": kept,
        "new": new,
        "gone": gone,
        "n_moved": len(moved),
        "n_placed": sum(path not in before for path in now),
        "n_images": len(now),
        "n_kept_out": len(kept_out),
        "does_not_fit": list(misfits),
        "moved": moved,
        "changed_labels": list(changed_labels),
        "cannot_links": kept_out,
    }


def changes_in_words(changes: Mapping[str, Any]) -> list[str]:
    """What changed, for a person to read."""
    gone = [one["category"] for one in changes["gone"]]
    became = [name for name in changes["became_known"] if name not in gone]
    taken = [f"{count(changes['n_decided'], 'image')} labeled by people"]
    if changes["n_kept_out"]:
        taken.append(f"{count(changes['n_kept_out'], 'image')} kept out of categories")
    if became:
        named = first_few(became, MAX_LISTED)
        taken.append(f"{count(len(became), 'novel category')} known now ({named})")
    n = changes["n_moved"]
    moved = (
        f"of {count(changes['n_images'], 'image')} {n:,} {plural(n, 'is')} in another category "
        "than before"
    )
    if changes["n_placed"]:
        moved += f", {changes['n_placed']:,} had none"
    moved += f"; categories: {len(changes['kept']):,} stayed"
    for what in ("new", "gone"):
        if changes[what]:
            named = first_few([one["category"] for one in changes[what]], MAX_LISTED)
            moved += f", {len(changes[what]):,} {what} ({named})"
    lines = [f"from the review: {', '.join(taken)}", moved]
    if misfits := changes["does_not_fit"]:
        n = len(misfits)
        line = (
            f"note: {count(n, 'action')} of the review no longer {plural(n, 'fits')}: {misfits[0]}"
        )
        if n > 1:
            line += f"; {n - 1:,} more in changes.json"
        lines.append(line)
    return lines
