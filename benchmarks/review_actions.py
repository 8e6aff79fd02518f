"""How many actions a curator needs until so many images are right: one image at a time, reviewed, reviewed and trained.

    shoal embed FOLDER --out FEATURES.npz          FOLDER holds a folder per class
    python benchmarks/review_actions.py FOLDER FEATURES.npz … --seeds 0 1 2 --record RECORD.md --plot PLOT.png
    python benchmarks/review_actions.py --train flowers102.zip cub200-train.zip:15 --seeds 0 --device cuda --workers 2

The curator is simulated (`benchmarks/curator.py` says what an action is) and answers from the truth; machine and
curator start from half of the classes known, half of their images labeled. The ways of working:

    one image at a time    an action gives an image its class, the least sure first; the others stay as they were found
    review                 the page of `shoal review`
    review and train       the same; after the first sure categories `shoal.refine` trains and clusters again

An image is right when its category is matched to its class, one to one, over all images; "checked" when a person,
or a label that was given, says so, too. Without --train the encoder is as it comes, and nothing is trained.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from answers import draw, unpack
from clustering import header, write
from curator import Curator, Curve, share_right
from shoal.arrays import Floats, Ints
from shoal.clustering.matching import match
from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.first_answer import answer_frozen
from shoal.discovery.run_folder import collection_checksum
from shoal.methods.clusters import Representation
from shoal.review.review import Review
from shoal.runs import Run

GOALS = (0.90, 0.95)
ONE, REVIEW, TRAIN = WAYS = ("one image at a time", "review", "review and train")
COLORS = dict(zip(WAYS, ("#888888", "#0072b2", "#d55e00"), strict=True))


def frozen_run(out: Path, collection: Collection, embeddings: Floats, settings: Any) -> Run:
    """What `shoal discover --no-train` answers, on embeddings that are there already."""
    frozen = Representation(embeddings=torch.from_numpy(embeddings), embed=lambda _: torch.empty(0))
    answer = answer_frozen(frozen, collection, settings)
    run = Run.create(out)
    about = {
        "root": str(collection.root),
        "folders": [],
        "fingerprint": collection_checksum(collection),
    }
    run.start(settings, seed=settings.seed, device="cpu", command="", **about)
    answer.write(run, settings)
    run.finish()
    return run


def measure(
    root: Path,
    features: Path | None,
    seed: int,
    args: argparse.Namespace,
    keep: Callable[..., None],
) -> None:
    """The curve of each way of working; `keep` gets each when it is done."""
    whole = read_collection(root)
    truth = np.array(whole.labels)
    _, labels = draw(truth, args.known, args.labeled, seed)
    given = {
        n: whole.classes[c] if c >= 0 else None
        for n, c in zip(whole.names, labels.tolist(), strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        if features is not None:
            images = read_collection(root, given)
            found = np.load(features)
            assert found["paths"].tolist() == list(images.names)
            x = np.ascontiguousarray(found["X"], dtype=np.float32)
            first = frozen_run(
                Path(folder) / "first", images, x, choose_settings(train=False, seed=seed)
            )
            review_only(first, truth, labels >= 0, keep)
            return
        how: dict[str, Any] = {"device": args.device, "verbose": False}
        found = shoal.discover(
            root, given, out=Path(folder) / "first", seed=seed, epochs=args.epochs, **how
        )
        first = Run(found.path)
        told(f"{root.name}, seed {seed}: trained")
        review_only(first, truth, labels >= 0, keep)
        told(f"{root.name}, seed {seed}: reviewed")
        (first.path / "review.jsonl").unlink()

        def again(run: Run, at: int) -> Run:
            return Run(
                shoal.refine(run.path, root, given, out=Path(folder) / f"again-{at}", **how).path
            )

        review_and_train(first, again, truth, labels >= 0, args.rounds, keep)


def told(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def review_only(first: Run, truth: Ints, is_given: Any, keep: Callable[..., None]) -> None:
    """The two ways that learn nothing on the way."""
    answer = Review(first).answer
    curve = Curve()
    label_one_by_one(
        curve, answer.category_ids, np.asarray(answer.columns["confidence"]), truth, is_given
    )
    keep(ONE, curve)
    curator = Curator(first, truth, is_given, Curve())
    curator.did(0)
    curator.finish()
    keep(REVIEW, curator.curve)


def review_and_train(
    first: Run,
    again: Callable[[Run, int], Run],
    truth: Ints,
    is_given: Any,
    rounds: int,
    keep: Callable[..., None],
) -> None:
    """From one first answer: `again(run, at)` trains and clusters anew after a review."""
    run = first
    curator = Curator(first, truth, is_given, Curve())
    curator.did(0)
    for at in range(rounds):
        curator.begin()
        before = curator.curve.right[-1]
        n_told = int(curator.is_told.sum())
        run = again(run, at)
        curator = Curator(run, truth, is_given, curator.curve, curator.n)
        curator.did(1)  # the command
        after = curator.curve.right[-1]
        told(
            f"trained again after {curator.n} actions, {n_told} images decided: {before:.3f} -> {after:.3f} right"
        )
    curator.finish()
    keep(TRAIN, curator.curve)


def label_one_by_one(
    curve: Curve, categories: Ints, confidence: Floats, truth: Ints, is_given: Any
) -> None:
    """Give each unlabeled image its class, the least sure first; a class is the category that it was matched to."""
    found = match(truth, categories)
    home = dict(zip(found.classes.tolist(), found.clusters.tolist(), strict=True))
    new = int(categories.max()) + 1 + truth
    now = categories.copy()
    order = [row for row in np.argsort(confidence, kind="stable").tolist() if not is_given[row]]
    for n, row in enumerate(order):
        if n % 10 == 0:
            curve.add(n, share_right(truth, now), (is_given.sum() + n) / len(truth))
        now[row] = home.get(int(truth[row]), int(new[row]))
    curve.add(len(order), share_right(truth, now), 1.0)


Job = tuple[Path, Path | None, int]
"""A folder of class folders, its features where they are there, a seed."""

Results = dict[str, list[dict[str, Curve]]]
"""By collection, for each seed, the curve of each way."""


def table(results: Results) -> str:
    """Actions to each goal, the mean of the seeds; a dash where a goal was not reached with every seed."""
    heads = [f"{100 * goal:.0f} % {what}" for what in ("right", "checked") for goal in GOALS]
    lines = [
        f"| collection | | at the start | {' | '.join(heads)} |",
        "|---" * (3 + len(heads)) + "|",
    ]
    for name, seeds in results.items():
        for way in (way for way in WAYS if all(way in one for one in seeds)):
            start = np.mean([100 * one[way].right[0] for one in seeds])
            cells = [
                in_words([one[way].until(goal, what) for one in seeds])
                for what in ("right", "checked")
                for goal in GOALS
            ]
            lines.append(f"| {name} | {way} | {start:.1f} % right | {' | '.join(cells)} |")
    return "\n".join(lines)


def in_words(needed: list[int | None]) -> str:
    """The mean, and the least and most where seeds differ."""
    found = [n for n in needed if n is not None]
    if len(found) < len(needed):
        return "–"
    spread = f" ({min(found):,}–{max(found):,})" if len(found) > 1 else ""
    return f"{np.mean(found):,.0f}{spread}"


def draw_plot(results: Results, file: Path) -> None:
    """The share of images right by actions, every seed of each collection."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(results), figsize=(4.6 * len(results), 3.4), sharey=True, squeeze=False
    )
    for axis, (name, seeds) in zip(axes[0], results.items(), strict=True):
        for at, curves in enumerate(seeds):
            for way, curve in curves.items():
                label = way if at == 0 else None
                axis.plot(
                    curve.actions,
                    [100 * y for y in curve.right],
                    color=COLORS[way],
                    linewidth=1.2,
                    label=label,
                )
        for goal in GOALS:
            axis.axhline(100 * goal, color="#cccccc", linewidth=0.8, zorder=0)
        axis.set(title=name, xlabel="actions")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("images right, %")
    axes[0][-1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def file_of(job: Job, args: argparse.Namespace) -> Path:
    root, _, seed = job
    found: Path = args.out / f"{root.name}-{seed}{'-trained' if args.train else ''}.json"
    return found


def work(job: Job, args: argparse.Namespace) -> None:
    """Measure one collection with one seed, unless it is in --out already."""
    kept = file_of(job, args)
    found = {}

    def keep(way: str, curve: Curve) -> None:
        found[way] = asdict(curve)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))

    if not kept.is_file() or (args.train and TRAIN not in json.loads(kept.read_text())):
        measure(*job, args, keep)


def share_out(jobs: list[Job], args: argparse.Namespace) -> None:
    """Every job in a process of its own, so many at a time."""
    options = [
        f"--known={args.known}",
        f"--labeled={args.labeled}",
        f"--rounds={args.rounds}",
        f"--out={args.out}",
    ]
    options += [f"--device={args.device}"] if args.device else []
    options += [f"--epochs={args.epochs}"] if args.epochs else []
    waiting = list(jobs)
    running = []
    while waiting or running:
        running = [one for one in running if one.poll() is None]
        while waiting and len(running) < args.workers:
            root, _, seed = waiting.pop(0)
            command = [sys.executable, __file__, "--train", str(root), f"--seeds={seed}", *options]
            running.append(subprocess.Popen(command))
        time.sleep(0.2)


def read_results(jobs: list[Job], args: argparse.Namespace) -> Results:
    results: Results = {}
    for job in jobs:
        if file_of(job, args).is_file():
            found = json.loads(file_of(job, args).read_text())
            results.setdefault(job[0].name, []).append(
                {way: Curve(**curve) for way, curve in found.items()}
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "places",
        nargs="+",
        help="folder and features, in pairs; with --train folders or archives alone",
    )
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--known", type=float, default=0.5)
    parser.add_argument("--labeled", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=1, help="how often is trained again")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/review_actions"),
        help="what is there is not done again",
    )
    parser.add_argument("--record", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    places = [
        unpack(place, args.out / "images") if ".zip" in place else Path(place)
        for place in args.places
    ]
    pairs = (
        [(root, None) for root in places]
        if args.train
        else list(zip(*[iter(places)] * 2, strict=True))
    )
    jobs: list[Job] = [(root, features, seed) for seed in args.seeds for root, features in pairs]
    if args.workers > 1:
        share_out(jobs, args)
    else:
        for job in jobs:
            work(job, args)
    results = read_results(jobs, args)
    if args.plot:
        draw_plot(results, args.plot)
    write([*header(sys.argv), table(results)], args.record)


if __name__ == "__main__":
    main()
