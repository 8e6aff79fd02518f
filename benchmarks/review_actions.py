"""How many actions a curator needs until so many images are right: one image at a time, reviewed, reviewed and refined.

    shoal embed FOLDER --out FEATURES.npz          FOLDER holds a folder per class
    python benchmarks/review_actions.py FOLDER FEATURES.npz … --seeds 0 1 --record RECORD.md --plot PLOT.png
    python benchmarks/review_actions.py --train FOLDER … --seeds 0 --device cuda      trains again after each review

The curator is simulated and answers from the truth; machine and curator start from half of the classes known, half of
their images labeled. Looking is free; every key and every click is an action:

    each image selected        1     confirm, reject           1 for all that are selected
    move, new category         3     name a category           3     (key, name, Enter)
    merge                      3     split into n parts        n + 1 (key, n - 1 on the slider, Enter)
    grow                       1, 1 for each yes or no, and 1 at the end

A category that is mostly one class is that class; the curator throws out what is not, names it, or merges it with the
category of that class, and grows it once. One that is not is split first. What is left is placed in the end, class by
class. "one image at a time": an action gives an image its class, the least sure first; the others keep what the machine
said. An image is right when its category is matched to its class, one to one, over all images; "vouched for" when a
person, or a label that was given, says so, too.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from answers import draw
from clustering import header, write
from shoal.arrays import Floats, Ints
from shoal.clustering.matching import match
from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.discovery.answers import FROZEN, cluster_frozen, make_answer
from shoal.discovery.folder import collection_checksum
from shoal.discovery.refinement import Refinement
from shoal.discovery.reporter import SILENT
from shoal.discovery.settings import choose_settings
from shoal.methods.clusters import Representation
from shoal.review import verbs
from shoal.review.actions import CONFIRMED, MOVED
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server.search import Search

PURE, FIRST, MAX_PARTS, ROUNDS = 0.5, 12, 6, 4
GOALS = (0.90, 0.95)
WAYS = ("one image at a time", "review", "review and refine")


@dataclass
class Curve:
    """Shares of images right and vouched for after so many actions."""

    actions: list[int] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    vouched: list[float] = field(default_factory=list)

    def add(self, actions: int, right: float, vouched: float) -> None:
        """Note where that many actions have led."""
        self.actions.append(actions)
        self.right.append(right)
        self.vouched.append(vouched)

    def until(self, goal: float, what: str) -> int | None:
        """The first number of actions with a share of at least `goal`."""
        return next((n for n, share in zip(self.actions, getattr(self, what), strict=True) if share >= goal), None)


def share_right(truth: Ints, categories: Ints) -> float:
    """The share of images in the category that is matched to their class; those without one are wrong."""
    rows = categories >= 0
    found = match(truth[rows], categories[rows])
    class_of = np.full(int(categories.max()) + 2, -1)  # the last one for images without a category
    class_of[found.clusters.astype(np.int64)] = found.classes
    return float((class_of[categories] == truth).mean())


class Curator:
    """Goes over a run with the actions of the page, and counts."""

    def __init__(self, run: Run, truth: Ints, is_given: Ints, curve: Curve, n_actions: int = 0) -> None:
        self.review = Review(run)
        self.search, self.truth, self.is_given = Search(self.review), truth, is_given
        self.curve, self.n = curve, n_actions
        self.home = self._homes()
        self.grown: set[int] = set()
        """Classes whose category was grown, or tried to be: once each."""

    @property
    def state(self) -> Any:
        """The review as it stands."""
        return self.review.state

    @property
    def is_decided(self) -> Any:
        """(N,) which images a person or a given label vouches for."""
        return np.isin(self.state.images.status, (CONFIRMED, MOVED)) | (self.is_given & (self.state.images.status == 0))

    def _homes(self) -> dict[int, int]:
        """By class the category with most of its images that a person or a given label vouches for."""
        decided = self.is_decided & (self.state.images.category >= 0)
        pairs = Counter(zip(self.truth[decided].tolist(), self.state.images.category[decided].tolist(), strict=True))
        return {own: number for (own, number), _ in reversed(pairs.most_common())}

    def did(self, n: int) -> None:
        """Count some actions and look where that leads."""
        self.n += n
        categories, home = self.state.images.category, np.full(int(self.truth.max()) + 1, -2)
        home[[*self.home]] = [*self.home.values()]
        vouched = self.is_decided & (categories == home[self.truth])
        self.curve.add(self.n, share_right(self.truth, categories), float(vouched.mean()))

    def paths(self, rows: Ints) -> list[str]:
        """Images as verbs take them."""
        return [self.review.answer.paths[row] for row in rows.tolist()]

    def go_over_categories(self, share: float = 1.0) -> None:
        """The categories with undecided images, the largest first, or a share of them."""
        sizes = {number: n for number in self.state.categories if (n := len(self.open_rows(number)))}
        ordered = sorted(sizes, key=lambda number: (-sizes[number], number))
        for number in ordered[: -int(-share * len(ordered) // 1)]:
            self.finish(number)

    def open_rows(self, number: int) -> Ints:
        """The undecided images of a category."""
        return np.flatnonzero((self.state.images.category == number) & ~self.is_decided)

    def finish(self, number: int, may_split: bool = True) -> None:
        """Split what is mixed, throw out what is wrong, confirm, name or merge, grow."""
        rows = self.open_rows(number)
        if not len(rows):  # others have grown by them
            return
        owner = next((c for c, home in self.home.items() if home == number), None)
        classes = Counter(self.truth[rows].tolist())
        own, n_own = (owner, classes[owner]) if owner is not None else classes.most_common(1)[0]
        if may_split and owner is None and n_own < PURE * len(rows) and len(rows) > 3:
            parts = self.split(number, rows)
            for part in parts:
                self.finish(part, may_split=False)
            return
        if n_own < (2 if owner is None else 1):  # not worth a name
            return
        right, wrong = rows[self.truth[rows] == own], rows[self.truth[rows] != own]
        if 0 < len(wrong) <= len(right):
            verbs.decide(self.review, "reject", None, self.paths(wrong), by="curator")
            self.did(len(wrong) + 1)
        verbs.decide(self.review, "confirm", None, self.paths(right), by="curator")
        self.did(1 if len(wrong) <= len(right) else len(right) + 1)  # what is wrong was thrown out, or right selected
        if self.home.get(own, number) != number:
            verbs.merge(self.review, [self.home[own], number], by="curator")
            self.did(3)
        elif owner is None:
            self.home[own] = number
            verbs.rename(self.review, number, f"class {own}", by="curator")
            self.did(3)
        if own not in self.grown:
            self.grown.add(own)
            self.grow(self.home[own], own)

    def split(self, number: int, rows: Ints) -> list[int]:
        """Into as many parts as cost least, by the preview."""

        def cost(n: int) -> int:
            found = [np.array(part) for part in self.search.parts(number, n)["parts"]]
            return n + sum(len(part) - max(Counter(self.truth[part].tolist()).values()) + 2 for part in found)

        n = min(range(2, min(MAX_PARTS, len(rows)) + 1), key=cost)
        before = set(self.state.categories)
        verbs.split(self.review, number, n, by="curator")
        self.did(n + 1)
        return [number, *sorted(set(self.state.categories) - before)]

    def grow(self, number: int, own: int) -> None:
        """Ask for candidates; where the first ones all belong, find by yes and no how far that goes."""
        rows = np.array(self.search.candidates(number)["rows"], dtype=np.int64)
        belongs, n = self.truth[rows] == own, 2  # opened, and closed or taken
        if not len(rows) or not belongs[:FIRST].all():
            self.did(n)
            return
        low, high, step = 0, len(rows), FIRST
        while high - low > 1 and low < len(rows):
            at = min(low + step, len(rows)) if high == len(rows) else low + -(-(high - low) // 2)
            n += 1
            if belongs[max(low, at - FIRST) : at].all():
                low, step = at, 2 * step
            else:
                high = at
        verbs.move(self.review, self.paths(rows[:low]), number, by="curator")
        self.did(n)

    def place_rest(self) -> None:
        """What is left, a class at a time, the most frequent first: select, and move or make a category."""
        rows = np.flatnonzero(~self.is_decided)
        for own, n in Counter(self.truth[rows].tolist()).most_common():
            to = self.home.get(own, f"class {own}")
            verbs.move(self.review, self.paths(rows[self.truth[rows] == own]), to, by="curator")
            self.home.setdefault(own, self.state.find(f"class {own}"))
            self.did(n + 3)


def frozen_run(out: Path, collection: Collection, embeddings: Floats, settings: Any) -> Run:
    """What `shoal discover --no-train` answers, on embeddings that are there already."""
    frozen = Representation(embeddings=torch.from_numpy(embeddings), embed=lambda _: torch.empty(0))
    answer = make_answer(FROZEN, cluster_frozen(frozen, collection.labels, settings), collection, settings)
    run = Run.create(out)
    about = {"root": str(collection.root), "folders": [], "fingerprint": collection_checksum(collection)}
    run.start(settings, seed=settings.seed, device="cpu", command="", **about)
    answer.write(run, settings)
    run.finish()
    return run


def refine_frozen(run: Run, out: Path, images: Collection, embeddings: Floats) -> Run:
    """What `shoal.refine` answers, on the same embeddings."""
    refinement = Refinement.open(run.path)
    collection = refinement.collection(images)
    settings = refinement.settings(choose_settings(config=refinement.config), collection, SILENT)
    new = frozen_run(out, collection, embeddings, settings)
    refinement.conclude(new, SILENT)
    return new


def measure(root: Path, features: Path | None, seed: int, args: argparse.Namespace, folder: Path) -> dict[str, Curve]:
    """The curve of each way of working."""
    whole = read_collection(root)
    truth = np.array(whole.labels)
    _, labels = draw(truth, args.known, args.labeled, seed)
    given = {n: whole.classes[c] if c >= 0 else None for n, c in zip(whole.names, labels.tolist(), strict=True)}
    images = read_collection(root, given)
    if features is None:
        how: dict[str, Any] = {"device": args.device, "verbose": False, "seed": seed}
        first = Run(shoal.discover(root, given, out=folder / "first", **how).path)

        def again(run: Run, out: Path) -> Run:
            return Run(shoal.refine(run.path, root, given, out=out, device=args.device, verbose=False).path)
    else:
        found = np.load(features)
        assert found["paths"].tolist() == list(images.names)
        x = np.ascontiguousarray(found["X"], dtype=np.float32)
        first = frozen_run(folder / "first", images, x, choose_settings(train=False, seed=seed))

        def again(run: Run, out: Path) -> Run:
            return refine_frozen(run, out, images, x)

    return work_in_every_way(first, again, truth, labels >= 0, folder, args)


def work_in_every_way(
    first: Run, again: Callable[[Run, Path], Run], truth: Ints, is_given: Any, folder: Path, args: argparse.Namespace
) -> dict[str, Curve]:
    """From one first answer: `again(run, out)` discovers anew after a review."""
    curves = {way: Curve() for way in WAYS}
    answer = Review(first).answer
    label_one_by_one(curves[WAYS[0]], answer.category_ids, np.asarray(answer.columns["confidence"]), truth, is_given)
    curator = Curator(first, truth, is_given, curves[WAYS[1]])
    curator.did(0)
    curator.go_over_categories()
    curator.place_rest()
    (first.path / "review.jsonl").unlink()
    run, curator = first, Curator(first, truth, is_given, curves[WAYS[2]])
    curator.did(0)
    for at in range(args.rounds):
        curator.go_over_categories(1 / (args.rounds - at))
        run = again(run, folder / f"again-{at}")
        grown, curator = curator.grown, Curator(run, truth, is_given, curves[WAYS[2]], curator.n)
        curator.grown = grown
        curator.did(1)  # the command
        print(f"  refined after {curator.n} actions: {curves[WAYS[2]].right[-1]:.3f} right", flush=True)
    curator.go_over_categories()
    curator.place_rest()
    return curves


def label_one_by_one(curve: Curve, categories: Ints, confidence: Floats, truth: Ints, is_given: Any) -> None:
    """Give each unlabeled image its class, the least sure first; a class is the category that it was matched to."""
    found = match(truth, categories)
    home = dict(zip(found.classes.tolist(), found.clusters.tolist(), strict=True))
    new = int(categories.max()) + 1 + truth
    now = categories.copy()
    order = [row for row in np.argsort(confidence, kind="stable").tolist() if not is_given[row]]
    for n, row in enumerate(order):
        if n % 50 == 0:
            curve.add(n, share_right(truth, now), (is_given.sum() + n) / len(truth))
        now[row] = home.get(int(truth[row]), int(new[row]))
    curve.add(len(order), share_right(truth, now), 1.0)


def table(results: dict[str, list[dict[str, Curve]]]) -> str:
    """Actions to each goal, the mean of the seeds; a dash where a goal was not reached with every seed."""
    heads = [f"{100 * goal:.0f} % {what}" for what in ("right", "vouched for") for goal in GOALS]
    lines = [f"| collection | | at the start | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    for name, seeds in results.items():
        for way in WAYS:
            start = np.mean([100 * one[way].right[0] for one in seeds])
            cells = []
            for what in ("right", "vouched"):
                for goal in GOALS:
                    needed = [one[way].until(goal, what) for one in seeds]
                    cells.append("–" if None in needed else f"{np.mean([n for n in needed if n is not None]):,.0f}")
            lines.append(f"| {name} | {way} | {start:.1f} % right | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_plot(results: dict[str, list[dict[str, Curve]]], file: Path) -> None:
    """The share of images right by actions, the first seed of each collection."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(4.2 * len(results), 3.2), sharey=True, squeeze=False)
    for axis, (name, seeds) in zip(axes[0], results.items(), strict=True):
        for way, color in zip(WAYS, ("#888888", "#0072b2", "#d55e00"), strict=True):
            axis.plot(seeds[0][way].actions, [100 * y for y in seeds[0][way].right], color=color, label=way)
        for goal in GOALS:
            axis.axhline(100 * goal, color="#cccccc", linewidth=0.8, zorder=0)
        axis.set(title=name, xlabel="actions")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("images right, %")
    axes[0][-1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "places", nargs="+", type=Path, help="folder and features, in pairs; with --train folders alone"
    )
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--known", type=float, default=0.5)
    parser.add_argument("--labeled", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3, help="how often is refined, each time after such a part")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/review_actions"), help="what is there is not done again")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    pairs = [(place, None) for place in args.places] if args.train else list(zip(*[iter(args.places)] * 2, strict=True))
    results: dict[str, list[dict[str, Curve]]] = {}
    for root, features in pairs:
        for seed in args.seeds:
            kept = args.out / f"{root.name}-{seed}{'-trained' if args.train else ''}.json"
            if not kept.is_file():
                with tempfile.TemporaryDirectory() as folder:
                    found = measure(root, features, seed, args, Path(folder))
                args.out.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps({way: asdict(curve) for way, curve in found.items()}))
            curves = {way: Curve(**curve) for way, curve in json.loads(kept.read_text()).items()}
            results.setdefault(root.name, []).append(curves)
    if args.plot:
        draw_plot(results, args.plot)
    write([*header(sys.argv), table(results)], args.record)


if __name__ == "__main__":
    main()
