"""The job of `shoal compare`: a folder with a run of each method, a table and a page.

Images are decoded and embedded once. Every method trains without the held-out labels, on the same
tokens and views, and its result is a run inside the comparison's folder. An interrupted comparison
is resumed: finished methods are kept, the others continue from their last epoch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from shoal.data.collection import Collection
from shoal.discovery.comparison.comparison_result import PAGE, Comparison
from shoal.discovery.comparison.comparison_settings import ComparisonSettings, name_of
from shoal.discovery.comparison.evaluation import (
    LabelSplit,
    doubts,
    evaluate,
    run_folder,
    split_labels,
)
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.named_categories import Result, name_categories
from shoal.discovery.reporter import NOTE
from shoal.discovery.results import FROZEN, TRAINED, cluster, frozen_result, write_result_run
from shoal.discovery.trained.evaluation import fit_batch
from shoal.discovery.trained.trained_result import with_networks
from shoal.discovery.trained.training import Training, stop_request, train, training_deadline
from shoal.errors import Diverged, TooFewDistinct
from shoal.files import write_text
from shoal.methods.method import Representation
from shoal.methods.registry import get_method
from shoal.runs import Run
from shoal.settings import Plain, dump_settings
from shoal.words import count


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A method in one repeat of a comparison, with its run folder."""

    settings: DiscoverySettings
    """With the number of categories, which is the same for every method."""
    title: str
    """The title of the method, after the number of the repeat."""
    collection: Collection
    """With the labels that methods see."""
    run: Run
    training: Training | None
    """None for a method that does not train."""


@dataclass(frozen=True, kw_only=True)
class ComparisonJob(Job):
    """A comparison to preview or to run."""

    comparison: ComparisonSettings
    command_for: Callable[[Path], str]
    """Returns the command that runs `discover` with a config."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why methods failed, by name; filled while the job runs."""

    @property
    def config(self) -> ComparisonSettings:
        return self.comparison

    @property
    def methods(self) -> Sequence[DiscoverySettings]:
        """The settings of every method, the frozen encoder first."""
        return self.comparison.methods

    def check(self, collection: Collection) -> None:
        """Refuse a collection with too few labels to hold out, or too few left for a method."""
        for settings in self.methods:
            split_labels(collection, settings)

    def split_labels(self, collection: Collection) -> list[LabelSplit]:
        """Return the held-out labels of each repeat."""
        repeats = range(self.comparison.repeats)
        return [split_labels(collection, self.settings, repeat) for repeat in repeats]

    def plan(self) -> Plain:
        """Return which labels would be held out, and what would be trained."""
        return {
            "held_out": [split.in_words() for split in self.split_labels(self.collection)],
            "methods": [name_of(each) for each in self.methods],
            "n_trainings": len(self._epochs) * self.comparison.repeats,
            "epochs": self._epochs,
            "n_clusters": self.settings.n_clusters,
        }

    @property
    def _epochs(self) -> dict[str, int]:
        trained = [each for each in self.methods if each.is_trained]
        return {each.method: each.trained.training.epochs for each in trained}

    def compute(self, images: EmbeddedImages) -> Plain:
        """Hold out labels, run every method, evaluate, and write the table."""
        splits = self.split_labels(images.collection)
        numbers = []
        trials = []
        for repeat, split in enumerate(splits):
            prefix = f"repeat {repeat + 1} of {len(splits)}: " if len(splits) > 1 else ""
            n_clusters = self._cluster_frozen(images, repeat, split)
            categories = f"{count(n_clusters, 'category')} for every method"
            self.reporter.report(f"{prefix}{split.in_words()}; {categories}")
            numbers.append(n_clusters)
            for settings in self.methods[1:]:
                chosen = replace(settings, n_clusters=n_clusters)
                trials.append(self._trial(chosen, repeat, prefix, split.collection))
        trials = [each for each in trials if not each.run.is_finished]
        trainings = [each for each in trials if each.training is not None]
        for each in trials:
            if each.training is None:
                self._write_result(each, images.frozen)
        if trainings:
            self._train(images, trainings)
        self._evaluate(images.collection, splits, sorted(set(numbers)))
        return {}

    def _trial(
        self, settings: DiscoverySettings, repeat: int, prefix: str, collection: Collection
    ) -> Trial:
        run = Run(run_folder(self.run.path, settings.method, repeat))
        training = None
        if settings.is_trained:
            settings = fit_batch(settings, len(collection), self.reporter)
            training = Training(
                method=settings.method,
                settings=settings.trained,
                labels=collection.labels,
                n_clusters=settings.n_clusters,
                folder=self.run.path / f"trial-{run.path.name}",
            )
        return Trial(
            settings=settings,
            title=prefix + get_method(settings.method).title,
            collection=collection,
            run=run,
            training=training,
        )

    def _cluster_frozen(self, images: EmbeddedImages, repeat: int, split: LabelSplit) -> int:
        """Write the result of the frozen encoder, and return its number of categories."""
        start = time.perf_counter()
        result = frozen_result(images.frozen, split.collection, self.settings)
        seconds = time.perf_counter() - start
        run = Run(run_folder(self.run.path, FROZEN, repeat))
        if not run.is_finished:
            self._write_run(run, result, self.settings, seconds)
        return result.discovery.n_clusters

    def _write_run(
        self, run: Run, result: Result, settings: DiscoverySettings, seconds: float
    ) -> None:
        n_clusters = settings.n_clusters or result.discovery.n_clusters
        about = {"n_clusters": n_clusters, "seconds": round(seconds, 3)}
        write_result_run(self.run, result, settings, run.path, **about)

    def _train(self, images: EmbeddedImages, trials: Sequence[Trial]) -> None:
        """Train one method after the other, until one is stopped."""
        trainings = [each.training for each in trials if each.training is not None]
        # Methods that read images make their own views.
        planned = tuple(each for each in trainings if not get_method(each.method).reads_images)
        n_epochs = sum(each.settings.training.epochs for each in trainings)
        with stop_request(training_deadline(self, images, self.comparison.max_minutes)) as stop:
            job = replace(self, stop=stop)
            self.reporter.report(
                f"{count(len(trainings), 'training run')}, {count(n_epochs, 'epoch')} in all. "
                "Ctrl-C stops and compares the finished methods, a second Ctrl-C quits; --resume "
                "continues"
            )
            for trial, training in zip(trials, trainings, strict=True):
                self.reporter.report(trial.title)
                try:
                    learned = train(job, images, replace(training, planned=planned))
                except Diverged as error:
                    lr = f"{training.method}.training.lr={training.settings.training.lr / 10:g}"
                    reason = str(error).partition(";")[0]
                    self._fail(training.method, f"{reason}; try --set {lr}")
                else:
                    if learned is None or not learned.is_done:
                        break
                    self._write_result(trial, learned)
                Run(training.folder).abandon()

    def _fail(self, method: str, reason: str) -> None:
        self.reporter.report(f"{NOTE}{method} failed: {reason}")
        self.failed[method] = reason

    def _write_result(self, trial: Trial, learned: Representation) -> None:
        """Cluster the images as the method does, and write the run."""
        start = time.perf_counter()
        settings = trial.settings
        try:
            if trial.training is None:
                result = frozen_result(learned, trial.collection, settings)
            else:
                result = name_categories(
                    cluster(learned, trial.collection.labels, settings),
                    trial.collection,
                    settings.shift.n_neighbors,
                    name=TRAINED,
                    # Training saw all labels, so none can calibrate the confidence.
                    held_out=np.empty(0, dtype=np.int64),
                )
                result = with_networks(result, trial.training, learned)
        except TooFewDistinct as error:
            self._fail(settings.method, f"its embeddings cannot be clustered ({error})")
            return
        seconds = sum(row["seconds"] for row in learned.metrics) + time.perf_counter() - start
        self._write_run(trial.run, result, settings, seconds)

    def _evaluate(
        self,
        collection: Collection,
        splits: Sequence[LabelSplit],
        n_clusters: Sequence[int],
    ) -> None:
        """Evaluate the finished methods on the held-out labels, and write table and page."""
        from shoal.report.rendering import render_comparison

        path = self.run.path
        settings = {name_of(each): each for each in self.methods}
        rows, pairs = evaluate(path, settings, splits, self.settings.seed)
        finished = {row.method for row in rows}
        command = None
        if collection.n_labeled < len(collection):  # `shoal discover` needs unlabeled images
            best = settings[rows[0].method]
            if best.train:
                best = replace(best, train=None)  # as `shoal discover` decides
            config = path / "best.yaml"
            write_text(config, dump_settings(best))
            command = self.command_for(config)
        comparison = Comparison(
            path=path,
            rows=rows,
            pairs=pairs,
            held_out={
                "n_images": sum(len(split.rows) for split in splits),
                "n_novel": sum(int(split.is_novel.sum()) for split in splits),
                "categories": [list(split.hidden_names) for split in splits],
                "n_repeats": len(splits),
            },
            n_clusters={
                "is_given": self.settings.n_clusters is not None,
                "values": list(n_clusters),
            },
            epochs=self._epochs,
            unfinished={
                name: self.failed.get(name, "it was stopped; --resume continues it")
                for name in settings
                if name not in finished
            },
            notes=doubts(splits),
            command=command,
        )
        self.run.write_json("comparison", comparison.to_dict())
        with self.reporter.progress("writing the page"):
            write_text(path / PAGE, render_comparison(self.run))
