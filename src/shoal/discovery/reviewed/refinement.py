"""Discover again after a review: its decisions become labels, cannot-links, names and ids.

`shoal discover photos/ --review runs/photos` and `shoal.refine` write a new run and do not change
the reviewed one. People have merged, split and named categories. Clustering from scratch would use
only the labels and lose the rest, so the frozen result continues from the reviewed categories.

Shapes: N images, D columns, K categories of which the first C are known.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.categories import category_centers, category_names
from shoal.clustering.matching import contingency
from shoal.clustering.n_clusters import clip_n_clusters
from shoal.clustering.neighbors import k_nearest
from shoal.data.collection import Collection, PreviousCategories
from shoal.data.readers import read_collection
from shoal.data.readers.shards import is_stored_source
from shoal.data.readers.tables import MAX_ABSENT_SHARE
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.job import ImageSource
from shoal.discovery.reporter import Reporter
from shoal.errors import DataError, UsageError, count, first_few
from shoal.files import AnyPath
from shoal.methods.method import Discovery
from shoal.review.replay import replay_onto, replay_review
from shoal.review.review import FILE, Review, checked_who
from shoal.review.reviewed_run import COUNTED_BY, Decisions
from shoal.review.state import State
from shoal.review.whitening import whitened
from shoal.runs import NO_CATEGORY, TABLE, Assignment, Run, read_columns
from shoal.settings import Plain

# Weight of a labeled image for its category, if an undecided one has 1
LABELED_WEIGHT = 5.0

N_NEIGHBORS = 20

# Weight of the neighbors' categories, compared with a cosine. The constants were chosen on
# Flowers-102 and Caltech-101.
VOTE_WEIGHT = 0.3


def _ids_before(collection: Collection, previous: PreviousCategories) -> Ints:
    """Return the category id (N,) of each image in the review, -1 for none."""
    return np.array([previous.categories.get(name, NO_CATEGORY) for name in collection.names])


def _rejected(collection: Collection, previous: PreviousCategories) -> dict[int, frozenset[int]]:
    """Return by row the ids of the categories that an image was rejected from."""
    return {
        row: previous.cannot_links[name]
        for row, name in enumerate(collection.names)
        if name in previous.cannot_links
    }


def reviewed_ids(collection: Collection) -> Ints:
    """Return the category id (N,) of each image: of its label, else in the review, else -1."""
    previous = collection.previous
    assert previous is not None
    class_ids = np.array([*previous.class_ids, NO_CATEGORY])  # the last one for unlabeled images
    return np.where(
        collection.labels == UNLABELED,
        _ids_before(collection, previous),
        class_ids[collection.labels],
    )


def count_reviewed(collection: Collection) -> int:
    """Return the number of categories with images, either by label or in the review."""
    ids = reviewed_ids(collection)
    return len(np.unique(ids[ids != NO_CATEGORY]))


def n_clusters_to_continue(collection: Collection, settings: DiscoverySettings) -> int | None:
    """Return the number of reviewed categories; None to cluster from scratch.

    Images are clustered from scratch if the settings ask for another number or no must-links.
    """
    if collection.previous is None or not settings.must_link:
        return None
    number = count_reviewed(collection)
    inference = settings.method_settings.inference
    wanted = settings.n_clusters or clip_n_clusters(
        number, inference.min_clusters, inference.max_clusters
    )
    return number if number == wanted else None


def continue_categories(
    discovery: Discovery, collection: Collection
) -> tuple[Discovery, Collection]:
    """Return the discovery with the reviewed categories as its clusters, and the collection with
    the resulting category of each image in `previous`.

    Each unlabeled image joins the nearest category that it was not rejected from, by its whitened
    embedding. Images without a category, because they were rejected
    or are new, form a new category if they are the majority of a cluster.
    """
    previous = collection.previous
    assert previous is not None
    ids = reviewed_ids(collection)
    has_none = ids == NO_CATEGORY
    sizes = np.bincount(discovery.clusters)
    shares = np.bincount(discovery.clusters, weights=has_none) / sizes
    is_new = has_none & (shares > 0.5)[discovery.clusters]
    ids = np.where(is_new, previous.next_id + discovery.clusters, ids)  # ids not used before
    is_labeled = collection.labels != UNLABELED
    cannot_links = _rejected(collection, previous)
    nearest = _nearest_ids(whitened(discovery.embeddings), ids, is_labeled, cannot_links)
    ids = np.where(is_labeled | is_new, ids, nearest)
    categories = {collection.names[row]: int(ids[row]) for row in np.flatnonzero(~is_new)}
    unlinked = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    numbers, clusters = np.unique(ids, return_inverse=True)
    continued = replace(
        discovery,
        clusters=clusters,
        n_clusters=len(numbers),
        estimate=None,
        n_clusters_source=COUNTED_BY,
        unlinked=unlinked,
    )
    return continued, replace(collection, previous=replace(previous, categories=categories))


def _nearest_ids(
    points: Floats, ids: Ints, is_labeled: NDArray[np.bool_], cannot_links: Mapping[int, Set[int]]
) -> Ints:
    """Return for each row (N, C) the id (N,) with the nearest center, of those that `cannot_links`
    does not forbid for it, if there are any; the share of an id among the neighbors is added.

    Labeled rows count more than others for a center and as neighbors.
    """
    numbers, positions = np.unique(ids, return_inverse=True)
    weights = np.where(is_labeled, LABELED_WEIGHT, 1.0)
    weights[ids == NO_CATEGORY] = 0.0
    weighted = torch.from_numpy(points * weights[:, None])
    centers = category_centers(weighted, positions, len(numbers)).numpy()  # (K, C)
    rows = torch.from_numpy(points)
    found = k_nearest(rows, rows, min(N_NEIGHBORS, len(rows) - 1), exclude=torch.arange(len(rows)))
    neighbors = found.indices.numpy()  # (N, k)
    votes = found.similarities.numpy().clip(min=0) * weights[neighbors]
    votes = VOTE_WEIGHT * votes / np.maximum(votes.sum(axis=1, keepdims=True), 1e-12)
    nearest = np.empty(len(points), dtype=np.int64)
    for row, point in enumerate(points):
        scores = centers @ point  # (K,)
        np.add.at(scores, positions[neighbors[row]], votes[row])
        is_allowed = ~np.isin(numbers, [NO_CATEGORY, *cannot_links.get(row, ())])
        if not is_allowed.any():
            is_allowed = numbers != NO_CATEGORY
        nearest[row] = np.where(is_allowed, scores, -np.inf).argmax()
    return numbers[nearest]


def reuse_names(
    categories: Ints, points: Tensor, collection: Collection, previous: PreviousCategories
) -> tuple[Ints, list[str], list[int], dict[int, set[int]]]:
    """Give each category the id and name of the reviewed one with mostly the same images.

    `categories` (N,) are positions, known classes first; `points` (N, D) unit rows. A known class
    without labeled images takes the category with mostly its images. Other categories get new ids
    and names. Images leave the categories they were rejected from.

    Return the new categories (N,), their names and ids (K,), and by row the positions of the
    categories that an image was rejected from.
    """
    classes = collection.classes
    same = match_groups(categories, _ids_before(collection, previous))
    filled = set(categories.tolist())
    position_of = {number: position for position, number in enumerate(previous.class_ids)}
    ids = list(previous.class_ids)
    positions = np.arange(int(categories.max()) + 1)
    next_id = previous.next_id
    for novel in range(len(classes), len(positions)):
        number = same.get(novel)
        if number in position_of and position_of[number] not in filled:
            positions[novel] = position_of[number]  # a known class without labeled images
            continue
        if number is None or number in position_of:
            number = next_id  # no reviewed category has mostly the same images
            next_id += 1
        positions[novel] = len(ids)
        ids.append(number)
    position_of = {number: position for position, number in enumerate(ids)}
    cannot_links = {
        row: {position_of[number] for number in rejected if number in position_of}
        for row, rejected in _rejected(collection, previous).items()
    }
    moved = apply_cannot_links(points, positions[categories], len(ids), cannot_links)
    if int(moved.max()) == len(ids):
        ids.append(next_id)
    taken = sorted({*previous.reserved_names, *previous.names.values(), *classes})
    n_new = sum(number not in previous.names for number in ids)
    new_names = iter(category_names(taken, n_new)[len(taken) :])
    names = list(classes)
    for number in ids[len(classes) :]:
        names.append(previous.names[number] if number in previous.names else next(new_names))
    return moved, names, ids, cannot_links


def match_groups(now: Ints, before: Ints) -> dict[int, int]:
    """Map groups of `now` (N,) to groups of `before` (N,) if they share more than half of the
    images of each.

    Hence each group is matched at most once. Images with -1 in `before` belong to no group there,
    but count for the size of their group in `now`.
    """
    counts, groups, earlier = contingency(before, now)  # (groups of now, groups of before)
    largest = np.maximum(counts.sum(axis=1)[:, None], counts.sum(axis=0))
    rows, columns = np.nonzero((2 * counts > largest) & (earlier != NO_CATEGORY))
    return dict(zip(groups[rows].tolist(), earlier[columns].tolist(), strict=True))


def apply_cannot_links(
    points: Tensor, categories: Ints, n_categories: int, cannot_links: Mapping[int, Set[int]]
) -> Ints:
    """Return categories (N,) of unit rows (N, D) that respect cannot-links.

    `cannot_links` maps a row to its forbidden categories. A row in one of these moves to the
    category with the nearest center that is allowed and has images; if there is none, it gets the
    number K, a new category.
    """
    wrong = {row: ids for row, ids in cannot_links.items() if categories[row] in ids}
    moved = categories.copy()
    if not wrong:
        return moved
    centers = category_centers(points, categories, n_categories)  # (K, D)
    rows = torch.tensor([*wrong], device=points.device)
    cosines = (points[rows].to(centers.dtype) @ centers.T).cpu().numpy()  # (M, K)
    cosines[:, np.bincount(categories, minlength=n_categories) == 0] = -np.inf
    for row, ids in zip(cosines, wrong.values(), strict=True):
        row[[*ids]] = -np.inf
    has_allowed = np.isfinite(cosines).any(axis=1)
    moved[[*wrong]] = np.where(has_allowed, cosines.argmax(axis=1), n_categories)
    return moved


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
