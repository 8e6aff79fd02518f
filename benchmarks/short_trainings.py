"""Shorter trainings, judged by given labels: fewer epochs, higher rates, and a last training that goes on from a trial.

    python benchmarks/short_trainings.py flowers102.zip --seed 0 --out runs/short

An archive is one of answers.py. Every row of --out has the share of judging labels that are right ('judged', with the
best weight of the frozen encoder) and, for the record alone, All / Known / Novel over the unlabeled images ('hidden').
'last' rows are trainings with more labels: half of the labels that were kept from the trial are given back, and the
other half judges; their 'hidden' is of a training with all of them. --rows takes some of LENGTHS, counted from 0.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import shoal.discovery.trained.train_and_answer as trained
from answers import draw, unpack
from shoal.clustering.blend import USUAL_WEIGHT, try_weights
from shoal.clustering.inference import infer
from shoal.clustering.matching import gcd_accuracy
from shoal.data.readers import read_collection
from shoal.device import choose_device
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.pipeline import discover_images
from shoal.discovery.reporter import SILENT
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.training_job import TrainingJob
from shoal.discovery.trained.trial_judge import TrialJudge
from shoal.discovery.trained.withheld import training_tasks
from shoal.methods.registry import get_method


class Done(Exception):
    """The experiment is over: what `discover` would do next is not wanted."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a trial is."""

    epochs: int
    lr: float
    min_lr: float
    pool: int = 16
    has_last: bool = False

    def of(self, settings: Any, epochs: int | None = None) -> Any:
        """The settings of a method with it."""
        views = replace(settings.training.views, pool=self.pool)
        how = {
            "epochs": epochs or self.epochs,
            "lr": self.lr,
            "min_lr": self.min_lr,
            "snapshot": "last",
        }
        return replace(settings, training=replace(settings.training, views=views, **how))


LENGTHS = (
    Length(epochs=25, lr=0.01, min_lr=0.005, has_last=True),
    Length(epochs=12, lr=0.01, min_lr=0.005),
    Length(epochs=12, lr=0.02, min_lr=0.01, has_last=True),
    Length(epochs=12, lr=0.04, min_lr=0.004),
    Length(epochs=8, lr=0.02, min_lr=0.01),
    Length(epochs=8, lr=0.04, min_lr=0.01, has_last=True),
    Length(epochs=5, lr=0.04, min_lr=0.01),
    Length(epochs=5, lr=0.08, min_lr=0.02),
    Length(epochs=8, lr=0.02, min_lr=0.01, pool=8),
    Length(epochs=8, lr=0.04, min_lr=0.01, pool=8),
    Length(epochs=12, lr=0.02, min_lr=0.01, pool=8),
    Length(epochs=12, lr=0.02, min_lr=0.01, pool=6),
    Length(epochs=12, lr=0.02, min_lr=0.01, pool=4),
)
LAST_SHARES = (0.25, 0.4)
"""Epochs of a last training that goes on from the trial, as a share of the trial's."""


def experiment(
    job: TrainingJob,
    judge: TrialJudge,
    lengths: list[Length],
    score: Callable[[np.ndarray], list[float]],
    tell: Callable[..., None],
) -> None:
    """Train and judge trials of some lengths, and last trainings after some of them."""
    base = job.settings.of_method
    labels = np.array(job.images.collection.labels)
    withheld = judge.withheld
    n_clusters = job.first.discovery.n_clusters
    method = get_method("cms")
    trial, final = training_tasks(job.images, withheld, n_clusters)
    rows = still_kept(labels, withheld.judged, withheld.hidden)
    fewer = replace(final, labels=np.where(np.isin(np.arange(len(labels)), rows), -1, labels))
    tell(what="frozen", judged=float(judge.frozen[0].right.mean()))
    shared = None
    for length in lengths:
        chosen = length.of(base)
        how = {"device": job.device, "keeps_trunk": True}
        is_shared = shared is not None and shared[0] == length.pool
        tried = method.represent(shared[1].with_trunk(trial) if is_shared else trial, chosen, **how)
        shared = shared if is_shared else (length.pool, tried)
        choice = judge.choose(tried.embeddings, None)
        about = {"epochs": length.epochs, "lr": length.lr, "pool": length.pool}
        found = {
            "judged": float(choice.with_training.right.mean()),
            "hidden": score(blended(job, tried, choice)),
        }
        tell(what="trial", **about, **found)
        lasts = (
            [(1.0, None), *((share, tried.model) for share in LAST_SHARES)]
            if length.has_last
            else []
        )
        for share, start in lasts:
            last = length.of(base, max(1, round(share * length.epochs)))
            part, whole = (
                method.represent(shared[1].with_trunk(task), last, start=start, **how)
                for task in (fewer, final)
            )
            weight = (
                choice.with_training.weight if choice.with_training.weight < 1 else USUAL_WEIGHT
            )
            pair = (job.frozen.embeddings, part.embeddings)
            options = {"seed": job.settings.seed, "weights": (weight,)}
            (right,) = try_weights(
                *pair,
                labels,
                rows,
                n_clusters,
                base.inference,
                **options,
                linkage_method=judge_linkage(job),
            )
            found = {
                "judged": float(right.right.mean()),
                "hidden": score(blended(job, whole, choice)),
            }
            tell(
                what=f"last, {share:g} of the epochs" + (" from the trial" if start else ", anew"),
                **about,
                **found,
            )
            if start is None:
                plain = replace(base.inference, must_link=False, try_average=False)
                alone = infer(whole.embeddings, labels, n_clusters, plain, device=job.device).labels
                tell(what="CMS with all labels", **about, hidden=score(alone))
    raise Done


def still_kept(labels: np.ndarray, judged: np.ndarray, hidden: tuple[int, ...]) -> np.ndarray:
    """Half of the rows that judge: half of the hidden categories, and half of the other images."""
    rng = np.random.default_rng(5)
    categories = rng.permutation(np.array(hidden))[: max(1, len(hidden) // 2)]
    others = rng.permutation(judged[~np.isin(labels[judged], hidden)])
    return np.sort(
        np.concatenate([judged[np.isin(labels[judged], categories)], others[: len(others) // 2]])
    )


def judge_linkage(job: TrainingJob) -> Any:
    """How the first answer joins small clusters."""
    return job.first.discovery.linkage_method


def blended(job: TrainingJob, learned: Any, choice: Choice) -> np.ndarray:
    """(N,) clusters by both encoders with the weight that the trial's judge chose."""
    chosen = choice.with_training
    found: np.ndarray = trained._cluster_blend(
        job, learned, chosen.weight, chosen.n_shifts
    ).clusters
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        choices=range(len(LENGTHS)),
        default=range(len(LENGTHS)),
        help="which of LENGTHS, from 0",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/short"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = unpack(arguments.archive, Path(folder))
        whole = read_collection(root)
        seed = arguments.seed
        truth = np.array(whole.labels)
        known, labels = draw(truth, 0.5, 0.5, seed)
        named = {
            name: whole.classes[label] if label >= 0 else None
            for name, label in zip(whole.names, labels, strict=True)
        }
        is_unlabeled = labels < 0
        is_known = np.isin(truth, known)

        def score(clusters: np.ndarray) -> list[float]:
            found = gcd_accuracy(
                truth[is_unlabeled], clusters[is_unlabeled], is_known[is_unlabeled]
            )
            return [round(100 * value, 2) for value in (found.all, found.known, found.novel)]

        def tell(**row: Any) -> None:
            with (arguments.out / f"{root.name}-{seed}.jsonl").open("a") as file:
                file.write(json.dumps({"collection": root.name, "seed": seed, **row}) + "\n")
            print(row, flush=True)

        trained._answer_by_trial = lambda job, _task, _last, judge: experiment(
            job, judge, [LENGTHS[row] for row in arguments.rows], score, tell
        )
        settings = choose_settings(n_clusters=int(truth.max()) + 1, seed=seed)
        device = choose_device(arguments.device)
        try:
            discover_images(
                read_collection(root, named),
                Path(folder) / "run",
                settings,
                device=device,
                reporter=SILENT,
            )
        except Done:
            print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
