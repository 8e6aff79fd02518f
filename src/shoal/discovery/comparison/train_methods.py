"""The trainings of a comparison: each method on what it is given, one after the other, its answer kept as a run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from shoal.discovery.answers import FROZEN, TRAINED, Answer, cluster, keep_answer, make_answer
from shoal.discovery.comparison.broadcast import (
    broadcast_next_training,
    broadcast_trainings,
    training_folder,
)
from shoal.discovery.comparison.comparison_settings import ComparisonSettings, name_of
from shoal.discovery.comparison.judge_methods import run_folder
from shoal.discovery.comparison.label_draw import LabelDraw
from shoal.discovery.comparison.trunk import SharedTrunk, Training
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import Readable
from shoal.discovery.reporter import NOTE, SILENT, Reporter
from shoal.discovery.trained.held_out import fit_batch
from shoal.discovery.trained.train_and_answer import with_networks
from shoal.discovery.trained.training_job import TrainingJob, note_stopped, stop_request, train_on
from shoal.distributed import is_started
from shoal.errors import Diverged, TooFewDistinct
from shoal.methods.clusters import Representation
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.runs import Run
from shoal.training.loop import StopTraining
from shoal.training.model import Model, shape_of
from shoal.words import count


@dataclass(frozen=True, eq=False, kw_only=True)
class Trainings:
    """What there is before the first training, and who hears of them."""

    images: Readable
    frozen: Representation
    draws: Sequence[LabelDraw]
    firsts: Sequence[Answer]
    """The answers of the encoder as it comes, one for each draw."""
    run: Run
    settings: ComparisonSettings
    device: torch.device
    resume: bool
    reporter: Reporter

    def answer_all(self) -> dict[str, int]:
        """Answer by every method that has no answer yet, until one is stopped; returns the epochs of each."""
        self._say_batches()
        others = self.settings.methods[1:]
        left = [
            (each, draw)
            for draw in range(len(self.draws))
            for each in others
            if not self._is_done(each, draw)
        ]
        for each, draw in left:
            if not each.is_trained:
                asked = self.firsts[draw].discovery.n_clusters
                self._answer(self.frozen, replace(each, n_clusters=asked), draw)
        trainings = self._prepare([(each, draw) for each, draw in left if each.is_trained])
        broadcast_trainings(trainings, self.device)
        if trainings:
            self._train(trainings)
        return {
            each.method: int(each.of_method.training.epochs) for each in others if each.is_trained
        }

    def _prepare(self, left: Sequence[tuple[DiscoverySettings, int]]) -> list[Training]:
        """Methods on what they are given in each draw: labels without the kept ones, and the number of categories."""
        models: dict[str, Model[Any]] = {}
        trainings = []
        for settings, draw in left:
            labels = self.draws[draw].given.labels
            asked = self.firsts[draw].discovery.n_clusters
            settings = fit_batch(replace(settings, n_clusters=asked), len(labels), SILENT)
            task = Task(pixels=self.images.pixels, labels=labels, n_clusters=asked)
            method = settings.method
            if method not in models:
                shape = shape_of(task, task.n_clusters)
                models[method] = get_method(method).build(settings.of_method, shape)
            trainings.append(
                Training(
                    draw=draw,
                    settings=settings,
                    task=task,
                    n_views=models[method].n_views,
                    reads_images=models[method].reads_images,
                )
            )
        return trainings

    def _say_batches(self) -> None:
        """Say once that batches are smaller where the collection is."""
        n_images = len(self.images.collection)
        trained = [each.of_method for each in self.settings.methods[1:] if each.is_trained]
        if any(chosen.training.batch_size > n_images for chosen in trained):
            self.reporter.say(
                f"{NOTE}batches of {n_images:,} images, because there are no more to train on"
            )

    def _train(self, trainings: Sequence[Training]) -> None:
        """Train one after the other, until one is stopped."""
        trunk = SharedTrunk(
            self.images.pixels, trainings, device=self.device, scratch=self.run.path
        )
        try:
            with stop_request(self.settings.max_minutes) as stop:
                self.reporter.say(announce(trainings, n_draws=len(self.draws)))
                for one in trainings:
                    broadcast_next_training(True, self.device)
                    if not self._train_one(one, trunk, stop):
                        break
            broadcast_next_training(False, self.device)
        finally:
            trunk.remove()

    def _train_one(self, one: Training, trunk: SharedTrunk, stop: Callable[[], bool]) -> bool:
        """Train a method and keep its answer; False where it was stopped."""
        draw = f", draw {one.draw + 1} of {len(self.draws)}" if len(self.draws) > 1 else ""
        self.reporter.say(f"{get_method(one.settings.method).title}{draw}")
        job = TrainingJob(
            frozen=self.frozen,
            first=self.firsts[one.draw],
            images=self.images,
            run=self.run,
            settings=one.settings,
            resume=self.resume,
            reporter=self.reporter,
            tensorboard=False,
            stop=stop,
        )
        folder = training_folder(self.run, one.settings, one.draw)
        try:
            task = _share(trunk, one, job)
            learned = train_on(job, task, one.settings.of_method, folder)
        except StopTraining:
            note_stopped(job, len(Run(folder).metrics))
            return False
        except Diverged as error:
            self._fail(one, str(error).partition(";")[0])
        else:
            if learned is None or not learned.is_done:
                return False
            self._answer(learned, one.settings, one.draw, job)
        Run(folder).abandon()
        return True

    def _fail(self, one: Training, why: str) -> None:
        """Leave a method whose training went wrong without an answer: it would go wrong again."""
        settings = one.settings
        asked = self.firsts[one.draw].discovery.n_clusters
        seconds = sum(
            row["seconds"] for row in Run(training_folder(self.run, settings, one.draw)).metrics
        )
        lr = f"--set {settings.method}.training.lr={settings.of_method.training.lr / 10:g}"
        why = f"its training went wrong ({why}); try a lower rate, as in {lr}"
        self.reporter.say(f"{NOTE}{why}")
        fail_run(self.run, why, settings, one.draw, asked=asked, seconds=seconds)

    def _answer(
        self,
        learned: Representation,
        settings: DiscoverySettings,
        draw: int,
        job: TrainingJob | None = None,
    ) -> None:
        """Put the images into categories as the method does, and keep that as a run of its own."""
        began = time.perf_counter()
        given = self.draws[draw].given
        asked = self.firsts[draw].discovery.n_clusters
        trained_s = sum(row["seconds"] for row in learned.metrics)
        try:
            discovery = cluster(learned, given.labels, settings)
        except TooFewDistinct as error:
            why = f"training has left nothing to cluster ({error})"
            self.reporter.say(f"{NOTE}{why}")
            fail_run(self.run, why, settings, draw, asked=asked, seconds=trained_s)
            return
        seconds = trained_s + time.perf_counter() - began
        unseen = (
            None if job is None else np.empty(0, dtype=np.int64)
        )  # labels that training saw judge no confidence
        answer = make_answer(
            FROZEN if job is None else TRAINED, discovery, given, settings, unseen=unseen
        )
        if job is not None:
            folder = training_folder(self.run, settings, draw)
            answer = with_networks(answer, job, learned, folder)
        keep_run(self.run, answer, settings, draw, asked=asked, seconds=seconds)

    def _is_done(self, settings: DiscoverySettings, draw: int) -> bool:
        run = Run(run_folder(self.run.path, settings.method, draw))
        return run.is_finished and (run.has("report.html") or bool(run.provenance.get("failed")))


def keep_run(
    run: Run, answer: Answer, settings: DiscoverySettings, draw: int, *, asked: int, seconds: float
) -> Run:
    """Keep the answer of a method in a draw as a run of its own, unless it is there."""
    kept = Run(run_folder(run.path, name_of(settings), draw))
    if not (kept.is_finished and kept.has("report.html")):
        keep_answer(run, answer, settings, kept.path, asked=asked, seconds=round(seconds, 3))
    return kept


def fail_run(
    run: Run, why: str, settings: DiscoverySettings, draw: int, *, asked: int, seconds: float
) -> None:
    """Leave a run without an answer that says why."""
    failed = Run.create(run_folder(run.path, settings.method, draw), force=True)
    origin = run.provenance
    failed.start(settings, seed=settings.seed, device=origin["device"], command=origin["command"])
    failed.finish(failed=why, asked=asked, seconds=round(seconds, 3))


def announce(trainings: Sequence[Training], *, n_draws: int) -> str:
    """Say how much will be trained, and how to end it early."""
    n_epochs = sum(one.settings.of_method.training.epochs for one in trainings)
    draws = f" ({n_draws} draws of kept labels)" if n_draws > 1 else ""
    return (
        f"{count(len(trainings), 'training')}{draws} of {count(n_epochs, 'epoch')} in all. Ctrl-C "
        "once stops and compares the methods that are finished, Ctrl-C twice quits; --resume goes on"
    )


def _share(trunk: SharedTrunk, one: Training, job: TrainingJob) -> Task:
    """The task of a training; what of the trunk is missing is computed with a bar, unless the user asks to stop."""
    if not trunk.n_missing(one):
        return trunk.share(one)
    with job.reporter.progress("preparing views for all methods", "views") as progress:

        def tell(done: int, total: int) -> None:
            progress(done, total)
            if not is_started() and job.stop():
                raise StopTraining

        return trunk.share(one, tell)
