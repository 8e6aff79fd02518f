"""Discover again after a review: its decisions become labels, cannot-links, names and ids.

`shoal discover photos/ --review runs/photos` and `shoal.refine` write a new run and do not change
the reviewed one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED
from shoal.data.collection import Collection, PreviousCategories
from shoal.data.readers import read_collection
from shoal.data.readers.shards import is_stored_source
from shoal.data.readers.tables import MAX_ABSENT_SHARE
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.job import ImageSource
from shoal.discovery.reporter import Reporter
from shoal.discovery.reviewed.previous_categories import count_reviewed
from shoal.errors import DataError, UsageError, count, first_few
from shoal.files import AnyPath
from shoal.review.replay import replay_onto, replay_review
from shoal.review.review import FILE, Review, checked_who
from shoal.review.reviewed_run import Decisions
from shoal.review.state import State
from shoal.runs import TABLE, Assignment, Run, read_columns
from shoal.settings import Plain


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """A reviewed run, and the decisions in its review that the next run uses."""

    run: Run
    decisions: Decisions
    # A note on lines of the log that are ignored
    note: str = ""

    @classmethod
    def open(cls, path: AnyPath) -> "Refinement":
        """Read the review of a finished run that was made from images."""
        run = Run.open(Path(path))
        if "fingerprint" not in run.provenance:
            raise UsageError(
                f"{run.path}: the run was made from precomputed embeddings, so it has no encoder "
                "to train; run `shoal cluster` again with the labels of `shoal export --to csv`"
            )
        if not run.has(FILE):
            raise UsageError(
                f"{run.path}: found no review ({FILE}); review it with `shoal review {run.path}`"
            )
        review = Review(run)
        return cls(run=run, decisions=Decisions(review.state), note=review.log.note)

    @property
    def next_folder(self) -> Path:
        """The default folder of the next run: runs/photos-2 after runs/photos, then
        runs/photos-3 and so on."""
        folder = self.run.path if self.run.path.name else self.run.path.resolve()
        numbered = re.fullmatch(r"(.+)-(\d+)", folder.name)
        if numbered and self.run.has("changes.json"):
            return folder.with_name(f"{numbered[1]}-{int(numbered[2]) + 1}")
        return folder.with_name(f"{folder.name}-2")

    def check_run_folder(self, out: Path, *, resume: bool, force: bool) -> None:
        """Raise if `out` is the reviewed run, or a run with a review that would be overwritten."""
        if out.resolve() == self.run.path.resolve():
            raise UsageError(f"{out}: this is the reviewed run itself; choose another --out")
        is_continued = resume or (Run(out).is_finished and not force)
        if Run(out).has(FILE) and not is_continued:
            raise UsageError(
                f"{out}: the folder has a review of its own ({FILE}); move it away, or choose "
                "another --out"
            )

    def images(self, *, allow_missing: bool = False) -> Collection:
        """Return the images of the reviewed run, without labels, from their original location."""
        root = str(self.run.provenance.get("root") or "")
        paths = read_columns(Assignment, self.run.path / TABLE, ["path"])["path"]
        if is_stored_source(root):
            stored = read_collection(root, False, allow_missing=allow_missing)
            return stored.subset(np.isin(stored.names, paths))
        if not root or not Path(root).is_dir():
            raise DataError(
                f"{self.run.path}: its images were in {root or 'memory'}, which does not exist; "
                "give the images"
            )
        return Collection(
            names=tuple(paths),
            labels=np.full(len(paths), UNLABELED),
            classes=(),
            root=Path(root),
            layout=f"the images of {self.run.path}",
            folders=tuple(self.run.provenance.get("folders") or ()),
        )

    def read(self, source: ImageSource) -> Collection:
        """Return the images of a source, by default those of the reviewed run, with the labels and
        cannot-links of the review; raise if more than a few images of that run are missing."""
        if source.is_empty:
            images = self.images(allow_missing=source.allow_missing)
        else:
            images = source.read()
        paths = set(read_columns(Assignment, self.run.path / TABLE, ["path"])["path"])
        missing = paths - set(images.names)
        most = len(paths) - 1 if source.allow_missing else max(1, MAX_ABSENT_SHARE * len(paths))
        if len(missing) > most:
            raise DataError(
                f"{self.run.path}: {len(missing):,} of its {len(paths):,} images are missing, for "
                f"example {min(missing)!r}; give all images of that run, or ignore some missing "
                "ones with --allow-missing"
            )
        return self.collection(images)

    def collection(self, images: Collection) -> Collection:
        """Return images with the labels and cannot-links of the review.

        If `images` have labels, these replace the labels given to the reviewed run; decisions of
        the review take precedence over both.
        """
        decisions = self.decisions
        names = dict(decisions.names)
        known = list(decisions.known)
        # `called` also maps names that the review changed, which label files may still use.
        id_of = {name: category for category, name in names.items()} | decisions.called
        next_id = decisions.next_id
        for name in images.classes:
            if name not in id_of:
                id_of[name] = next_id
                names[next_id] = name
                next_id += 1
            if id_of[name] not in known:
                known.append(id_of[name])
        labels = None
        if images.n_labeled:
            labels = {path: id_of[name] for path, name in _label_names(images).items() if name}
        ids = [decisions.label(path, labels) for path in images.names]
        position_of = {category: position for position, category in enumerate(known)}
        return replace(
            images,
            labels=np.array([position_of.get(category, UNLABELED) for category in ids]),
            classes=tuple(names[category] for category in known),
            layout=f"{images.layout}; with the labels and the review of {self.run.path}",
            previous=PreviousCategories(
                class_ids=tuple(known),
                names=names,
                categories=decisions.categories,
                cannot_links=decisions.cannot_links,
                next_id=next_id,
                reserved_names=decisions.taken,
            ),
        )

    def changed_labels(self, now: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the labels given to the reviewed run that are different in `now`, a mapping from
        path to label."""
        names = self.decisions.names
        former = {path: names[category] for path, category in sorted(self.decisions.given.items())}
        return [
            {"path": path, "given": name, "now": now[path]}
            for path, name in former.items()
            if now.get(path, name) != name
        ]

    def choose_settings(self, arguments: Mapping[str, Any]) -> DiscoverySettings:
        """Return the settings for the arguments of `choose_settings`.

        Unless they include a config or a recipe, all other settings are those of the reviewed run.
        """
        if arguments.get("config") or arguments.get("recipe"):
            return choose_settings(**arguments)
        self.run.config_as(DiscoverySettings)  # raises for a damaged file
        return choose_settings(**{**arguments, "config": self.run.path / "config.yaml"})

    def fit_settings(
        self,
        chosen: DiscoverySettings,
        arguments: Mapping[str, Any],
        collection: Collection,
        reporter: Reporter,
    ) -> DiscoverySettings:
        """Return the settings with a number of categories that fits the review; report notes.

        A number that the user requests for this run is raised to the number of known categories
        that have labeled images if it is lower. A number in the settings of the reviewed run is
        replaced by the number of reviewed categories.
        """
        is_requested = "n_clusters" in (arguments.get("changes") or {}) or any(
            arguments.get(name) is not None for name in ("n_clusters", "config", "recipe")
        )
        n_clusters = chosen.n_clusters
        if collection.n_labeled == len(collection) and (n_clusters is None or not is_requested):
            raise DataError(
                f"{self.run.path}: every image is labeled or decided, so nothing is left to "
                f"discover; export the review with `shoal export {self.run.path} --to "
                "imagefolder --out sorted/`"
            )
        if self.note:
            reporter.report(self.note)
        n_changed = len(self.changed_labels(_label_names(collection)))
        if n_changed:
            reporter.report(
                f"note: the review or new labels change {count(n_changed, 'given label')}; "
                "changes.json lists them"
            )
        sizes = collection.class_sizes
        empty = [collection.classes[label] for label in np.flatnonzero(sizes == 0)]
        if empty and chosen.is_trained:
            reporter.report(
                "note: known categories without a labeled or confirmed image "
                f"({first_few(empty)}) may disappear in training; confirm some images "
                "of them first, or give --no-train"
            )
        n_known = len(sizes) - len(empty)
        if n_clusters is None:
            return chosen
        fitting = max(n_clusters, n_known) if is_requested else count_reviewed(collection)
        if n_clusters == fitting:
            return chosen
        reporter.report(
            f"note: using {fitting} categories instead of {n_clusters}, to match the review"
        )
        return replace(chosen, n_clusters=fitting)

    def write_final_outputs(self, run: Run, reporter: Reporter) -> None:
        """Write changes.json into the new run, and replay the review on it."""
        state = State(run)
        log = self.run.path / FILE
        # A merged category is replayed onto the one it was merged into.
        present = {category: category for category in self.decisions.names} | self.decisions.ended
        ids = {old: category for old, category in present.items() if category in state.found}
        not_applied = replay_onto(State(run), log, ids)
        labels = dict(zip(state.paths, state.columns["label_given"], strict=True))
        changes = self._changes(state) | {
            "not_applied": not_applied,
            "changed_labels": self.changed_labels(labels),
        }
        run.write_json("changes", changes)
        if not run.has(FILE):  # it exists if this process was killed here before
            replay_review(log, run, by=checked_who(None), ids=ids)
        used = count(changes["n_decided"], "labeled image")
        if became_known := changes["became_known"]:
            used += f"; now known: {first_few(became_known)}"
        reporter.report(f"from the review: {used}")
        n_images = count(changes["n_images"], "image")
        reporter.report(f"{changes['n_moved']:,} of {n_images} changed category")
        if not_applied:
            n_actions = count(len(not_applied), "action")
            reporter.report(
                f"note: could not apply {n_actions} of the review, for example: {not_applied[0]}"
            )

    def _changes(self, state: State) -> Plain:
        """Compare the reviewed categories with those of the new run, by id."""
        decisions = self.decisions
        before = decisions.categories
        now = dict(zip(state.paths, state.category_ids.tolist(), strict=True))
        n_moved = sum(before.get(path, category) != category for path, category in now.items())
        cannot_links = {
            path: sorted(ids) for path, ids in sorted(decisions.cannot_links.items()) if path in now
        }
        return {
            "review_of": str(self.run.path),
            "n_images": len(now),
            "n_decided": sum(path in now for path in decisions.labels),
            "n_moved": n_moved,
            "became_known": [decisions.names[category] for category in decisions.became_known],
            "cannot_links": cannot_links,
        }


def _label_names(collection: Collection) -> dict[str, str]:
    """Return the label of each image by path, '' for unlabeled."""
    names = [*collection.classes, ""]  # the last one for UNLABELED
    labels = zip(collection.names, collection.labels.tolist(), strict=True)
    return {path: names[label] for path, label in labels}
