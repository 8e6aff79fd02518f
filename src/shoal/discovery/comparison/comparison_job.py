"""The job of `shoal compare`: a folder with a run of each method, a table and a page.

Images are decoded and embedded once. Every method trains without the held-out labels, on the same
tokens and views, and its result is a run inside the comparison's folder. An interrupted comparison
is resumed: finished methods are kept, the others continue from their last epoch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.data.collection import Collection
from shoal.discovery.comparison.comparison_result import PAGE, Comparison
from shoal.discovery.comparison.comparison_settings import ComparisonSettings, name_of
from shoal.discovery.comparison.evaluate_methods import (
    evaluate,
    held_out_table,
    rank_methods,
    run_folder,
)
from shoal.discovery.comparison.label_split import LabelSplit, doubt_split, split_labels
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.frozen_result import cluster_frozen
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import NOTE, SILENT
from shoal.discovery.results import FROZEN, TRAINED, cluster, make_result, write_result_run
from shoal.discovery.trained.held_out import fit_batch
from shoal.discovery.trained.trained_result import with_networks
from shoal.discovery.trained.training import Training, stop_request, train, training_deadline
from shoal.errors import Diverged, TooFewDistinct
from shoal.files import write_text
from shoal.methods.clusters import Representation
from shoal.methods.registry import get_method
from shoal.runs import Run
from shoal.words import count, doubt_labels


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodRun:
    """A method in one repeat of a comparison, with its run folder."""

    settings: DiscoverySettings
    """With the number of categories, which is the same for every method."""
    repeat: int
    split: LabelSplit
    run: Run

    @property
    def is_done(self) -> bool:
        """Whether the run has a result, or has failed."""
        is_written = self.run.has("report.html")
        return self.run.is_finished and (is_written or bool(self.run.provenance.get("failed")))

    def training(self, parent: Run) -> Training:
        """Return the training of the method, without the held-out labels."""
        return Training(
            method=self.settings.method,
            settings=self.settings.trained,
            labels=self.split.collection.labels,
            n_clusters=self.settings.n_clusters,
            folder=parent.path / f"trial-{self.run.path.name}",
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparisonJob(Job):
    """A comparison to preview or to run."""

    comparison: ComparisonSettings
    command_for: Callable[[str], str]
    """Returns the command that runs a method, by name, with all labels."""

    @property
    def config(self) -> ComparisonSettings:
        """The content of config.yaml."""
        return self.comparison

    @property
    def methods(self) -> Sequence[DiscoverySettings]:
        """The settings of every method, the frozen encoder first."""
        return self.comparison.methods

    def check(self, collection: Collection) -> None:
        """Refuse a collection with too few labels to hold out, or too few left for a method."""
        self.split_labels(collection)
        for settings in self.methods:
            split_labels(collection, settings)

    def split_labels(self, collection: Collection) -> list[LabelSplit]:
        """Return the held-out labels of each repeat."""
        repeats = range(self.comparison.repeats)
        return [split_labels(collection, self.settings, repeat) for repeat in repeats]

    def plan(self, readable: Collection) -> dict[str, Any]:
        """Return which labels would be held out, and what would be trained."""
        return {
            "held_out": [split.in_words() for split in self.split_labels(readable)],
            "methods": [name_of(each) for each in self.methods],
            "n_trainings": len(self._epochs) * self.comparison.repeats,
            "epochs": self._epochs,
            "n_clusters": self.settings.n_clusters,
        }

    @property
    def _epochs(self) -> dict[str, int]:
        """The epochs of each method that trains."""
        trained = [each for each in self.methods if each.is_trained]
        return {each.method: each.trained.training.epochs for each in trained}

    def compute(self, images: EmbeddedImages) -> dict[str, Any]:
        """Hold out labels, run every method, evaluate, and write the table."""
        splits = self.split_labels(images.collection)
        for repeat, split in enumerate(splits):
            self.reporter.report(f"{self._repeat_in_words(repeat)}{split.in_words()}")
        doubt = doubt_split(splits)
        if doubt:
            self.reporter.report(f"{NOTE}{doubt}")
        numbers = [self._cluster_frozen(images, *item) for item in enumerate(splits)]
        method_runs = [
            self._method_run(settings, repeat, split, numbers[repeat])
            for repeat, split in enumerate(splits)
            for settings in self.methods[1:]
        ]
        remaining = [each for each in method_runs if not each.is_done]
        for each in remaining:
            if not each.settings.is_trained:
                self._write_result(each, images.frozen)
        self._train(images, [each for each in remaining if each.settings.is_trained])
        notes = [f"{doubt}."] if doubt else []
        self._evaluate(images.collection, splits, sorted(set(numbers)), notes)
        return {}

    def conclude(self) -> None:
        """Do nothing: the table and its page are written with the result."""

    def _method_run(
        self, settings: DiscoverySettings, repeat: int, split: LabelSplit, n_clusters: int
    ) -> MethodRun:
        settings = replace(settings, n_clusters=n_clusters)
        if settings.is_trained:
            reporter = self.reporter if repeat == 0 else SILENT
            settings = fit_batch(settings, len(split.collection), reporter)
        folder = run_folder(self.run.path, name_of(settings), repeat)
        return MethodRun(settings=settings, repeat=repeat, split=split, run=Run(folder))

    def _repeat_in_words(self, repeat: int) -> str:
        n_repeats = self.comparison.repeats
        return f"repeat {repeat + 1} of {n_repeats}: " if n_repeats > 1 else ""

    def _cluster_frozen(self, images: EmbeddedImages, repeat: int, split: LabelSplit) -> int:
        """Write the result of the frozen encoder, and return its number of categories."""
        start = time.perf_counter()
        discovery = cluster_frozen(images.frozen, split.collection.labels, self.settings)
        seconds = round(time.perf_counter() - start, 3)
        n_clusters = discovery.n_clusters
        run = Run(run_folder(self.run.path, FROZEN, repeat))
        if not (run.is_finished and run.has("report.html")):
            result = make_result(FROZEN, discovery, split.collection, self.settings)
            about = {"n_clusters": n_clusters, "seconds": seconds}
            write_result_run(self.run, result, self.settings, run.path, **about)
        if repeat == 0:
            is_given = self.settings.n_clusters is not None
            source = "given" if is_given else "estimated with the frozen encoder"
            self.reporter.report(f"{count(n_clusters, 'category')} for every method, {source}")
            doubt = doubt_labels(split.collection.n_labeled, split.collection.n_classes)
            if doubt and not is_given:
                self.reporter.report(f"{NOTE}{doubt}")
        return n_clusters

    def _train(self, images: EmbeddedImages, method_runs: Sequence[MethodRun]) -> None:
        """Train one method after the other, until one is stopped."""
        if not method_runs:
            return
        # Methods that read images make their own views.
        planned = tuple(
            each.training(self.run)
            for each in method_runs
            if not get_method(each.settings.method).reads_images
        )
        n_epochs = sum(each.settings.trained.training.epochs for each in method_runs)
        with stop_request(training_deadline(self, images, self.comparison.max_minutes)) as stop:
            job = replace(self, stop=stop)
            self.reporter.report(
                f"{count(len(method_runs), 'training')}, {count(n_epochs, 'epoch')} in all. Ctrl-C "
                "stops and compares the finished methods, a second Ctrl-C quits; --resume continues"
            )
            for each in method_runs:
                title = get_method(each.settings.method).title
                self.reporter.report(f"{self._repeat_in_words(each.repeat)}{title}")
                training = replace(each.training(self.run), planned=planned)
                if not job._train_method(images, each, training):
                    break
        images.trunk.free()

    def _train_method(
        self, images: EmbeddedImages, method_run: MethodRun, training: Training
    ) -> bool:
        """Train a method and write its result; return False if it was stopped."""
        try:
            learned = train(self, images, training)
        except Diverged as error:
            lr = f"--set {training.method}.training.lr={training.settings.training.lr / 10:g}"
            reason = f"{str(error).partition(';')[0]}; try a lower learning rate, as in {lr}"
            self._write_failure(method_run, reason, Run(training.folder).metrics)
        else:
            if learned is None or not learned.is_done:
                return False
            self._write_result(method_run, learned, training)
        Run(training.folder).abandon()
        return True

    def _write_result(
        self, method_run: MethodRun, learned: Representation, training: Training | None = None
    ) -> None:
        """Cluster the images as the method does, and write the run.

        `training` is None for a method that does not train.
        """
        start = time.perf_counter()
        settings = method_run.settings
        collection = method_run.split.collection
        try:
            discovery = cluster(learned, collection.labels, settings)
        except TooFewDistinct as error:
            reason = f"its embeddings cannot be clustered after training ({error})"
            self._write_failure(method_run, reason, learned.metrics)
            return
        seconds = _seconds(learned.metrics) + time.perf_counter() - start
        if training is None:
            result = make_result(FROZEN, discovery, collection, settings)
        else:
            # Training saw all labels of the collection, so none can calibrate the confidence.
            unseen = np.empty(0, dtype=np.int64)
            result = make_result(TRAINED, discovery, collection, settings, unseen=unseen)
            result = with_networks(result, training, learned)
        about = {"n_clusters": settings.n_clusters, "seconds": round(seconds, 3)}
        write_result_run(self.run, result, settings, method_run.run.path, **about)

    def _write_failure(
        self, method_run: MethodRun, reason: str, metrics: Sequence[dict[str, Any]]
    ) -> None:
        """Write a finished run without a result, so that --resume does not train it again."""
        settings = method_run.settings
        self.reporter.report(f"{NOTE}{settings.method} failed: {reason}")
        run = Run.create(method_run.run.path, force=True)
        origin = self.run.provenance
        run.start(settings, seed=settings.seed, device=origin["device"], command=origin["command"])
        seconds = round(_seconds(metrics), 3)
        run.finish(failed=reason, n_clusters=settings.n_clusters, seconds=seconds)

    def _evaluate(
        self,
        collection: Collection,
        splits: Sequence[LabelSplit],
        n_clusters: Sequence[int],
        notes: Sequence[str],
    ) -> None:
        """Evaluate the finished methods on the held-out labels, and write table and page."""
        from shoal.report.comparison import render_comparison

        path = self.run.path
        names = [name_of(each) for each in self.methods]
        evaluated = [evaluate(path, name, splits) for name in names]
        finished = [each for each in evaluated if each is not None]
        rows, pairs = rank_methods(finished, splits, self.settings.seed)
        unfinished = [name for name, each in zip(names, evaluated, strict=True) if each is None]
        command = None
        if collection.n_labeled < len(collection):  # `shoal discover` needs unlabeled images
            command = self.command_for(rows[0].method)
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
            unfinished=tuple(unfinished),
            notes=tuple(notes),
            command=command,
        )
        self.run.write_json("comparison", comparison.to_dict())
        write_text(path / "held_out.csv", held_out_table(finished, splits))
        with self.reporter.progress("writing the page"):
            write_text(path / PAGE, render_comparison(self.run))


def _seconds(metrics: Sequence[dict[str, Any]]) -> float:
    return float(sum(row["seconds"] for row in metrics))
