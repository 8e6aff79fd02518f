"""`shoal.compare` and its job: a folder with a run of each method, a table and a page.

Images are decoded and embedded once. Every method trains without the held-out labels, on the same
tokens and views, and its result is a run inside the comparison's folder. An interrupted comparison
is resumed: finished methods are kept, the others continue from their last epoch.
"""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from shoal.data.collection import Collection
from shoal.data.storage import as_address
from shoal.device import AnyDevice, choose_device
from shoal.discovery.comparison.evaluation import (
    PAGE,
    Comparison,
    LabelSplit,
    doubts,
    evaluate,
    run_folder,
    split_labels,
)
from shoal.discovery.discovery_settings import (
    ComparisonSettings,
    DiscoverySettings,
    SharedArguments,
    choose_comparison,
    name_of,
)
from shoal.discovery.job import EmbeddedImages, ImageSource, Job
from shoal.discovery.reporter import Reporter, default_reporter
from shoal.discovery.results import (
    FROZEN,
    TRAINED,
    Result,
    cluster,
    frozen_result,
    name_categories,
    write_result_run,
)
from shoal.discovery.run_job import run_job
from shoal.discovery.trained.evaluation import fit_batch
from shoal.discovery.trained.trained_result import (
    Training,
    stop_request,
    train,
    training_deadline,
    with_networks,
)
from shoal.errors import Diverged, TooFewDistinct, count
from shoal.files import AnyPath, write_text
from shoal.methods.method import Representation
from shoal.methods.registry import get_method
from shoal.runs import Run
from shoal.settings import Plain, dump_settings


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training run of a comparison: a method in one repeat, with its run folder."""

    # With the number of categories, which is the same for every method
    settings: DiscoverySettings
    # The title of the method, after the number of the repeat
    title: str
    # With the labels that methods see
    collection: Collection
    run: Run
    training: Training


@dataclass(frozen=True, kw_only=True)
class ComparisonJob(Job):
    """A comparison to preview or to run."""

    comparison: ComparisonSettings
    # Returns the command that runs `discover` with a config
    command_for: Callable[[Path], str]
    # Why methods failed, by name; filled while the job runs
    failed: dict[str, str] = field(default_factory=dict)

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
        repeats = range(self.comparison.repeats)
        return [split_labels(collection, self.settings, repeat) for repeat in repeats]

    def plan(self) -> Plain:
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
        splits = self.split_labels(images.collection)
        numbers = []
        trials = []
        for repeat, split in enumerate(splits):
            prefix = f"repeat {repeat + 1} of {len(splits)}: " if len(splits) > 1 else ""
            collection = split.collection
            run = Run(run_folder(self.run.path, FROZEN, repeat))
            n_clusters = self._write_frozen(images, collection, self.settings, run)
            categories = f"{count(n_clusters, 'category')} for every method"
            self.reporter.report(f"{prefix}{split.in_words()}; {categories}")
            numbers.append(n_clusters)
            for settings in self.methods[1:]:
                chosen = replace(settings, n_clusters=n_clusters)
                run = Run(run_folder(self.run.path, settings.method, repeat))
                if run.is_finished:
                    continue
                if not settings.is_trained:
                    self._write_frozen(images, collection, chosen, run)
                    continue
                chosen = fit_batch(chosen, len(collection), self.reporter)
                training = Training(
                    method=chosen.method,
                    settings=chosen.trained,
                    labels=collection.labels,
                    n_clusters=n_clusters,
                    folder=self.run.path / f"trial-{run.path.name}",
                )
                trial = Trial(
                    settings=chosen,
                    title=prefix + get_method(chosen.method).title,
                    collection=collection,
                    run=run,
                    training=training,
                )
                trials.append(trial)
        if trials:
            self._train(images, trials)
        images.trunk_outputs.free()
        self._evaluate(images.collection, splits, sorted(set(numbers)))
        return {}

    def _write_frozen(
        self, images: EmbeddedImages, collection: Collection, settings: DiscoverySettings, run: Run
    ) -> int:
        """Cluster the frozen embeddings, write the result unless the run is finished, and return
        its number of categories."""
        start = time.perf_counter()
        result = frozen_result(images.frozen, collection, settings)
        if not run.is_finished:
            self._write_run(run, result, settings, time.perf_counter() - start)
        return result.discovery.n_clusters

    def _write_run(
        self, run: Run, result: Result, settings: DiscoverySettings, seconds: float
    ) -> None:
        write_result_run(
            self.run,
            result,
            settings,
            run.path,
            n_clusters=settings.n_clusters or result.discovery.n_clusters,
            seconds=round(seconds, 3),
        )

    def _train(self, images: EmbeddedImages, trials: Sequence[Trial]) -> None:
        """Train one method after the other, until one is stopped."""
        trainings = [each.training for each in trials]
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
            for trial in trials:
                training = trial.training
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
                    self._write_trained(trial, learned)
                Run(training.folder).abandon()

    def _fail(self, method: str, reason: str) -> None:
        self.reporter.report(f"note: {method} failed: {reason}")
        self.failed[method] = reason

    def _write_trained(self, trial: Trial, learned: Representation) -> None:
        """Cluster the images as the method does, and write the run."""
        start = time.perf_counter()
        settings = trial.settings
        try:
            discovery = cluster(learned, trial.collection.labels, settings)
        except TooFewDistinct as error:
            self._fail(settings.method, f"its embeddings cannot be clustered ({error})")
            return
        result = name_categories(
            discovery,
            trial.collection,
            settings.shift.n_neighbors,
            name=TRAINED,
            # Training saw all labels, so none can calibrate the confidence.
            held_out=np.empty(0, dtype=np.int64),
        )
        result = with_networks(result, trial.training, learned)
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


def compare(
    images: Any = None,
    labels: Any = None,
    methods: str | Sequence[str] | None = None,
    *,
    labeled: AnyPath | None = None,
    unlabeled: AnyPath | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
    boxes: Any = None,
    min_confidence: float | None = None,
    margin: float = 0.0,
    whole_images: bool = False,
    repeats: int = 1,
    max_minutes: float | None = None,
    out: AnyPath | None = None,
    device: AnyDevice = None,
    resume: bool = False,
    force: bool = False,
    verbose: bool = True,
    reporter: Reporter | None = None,
    **settings: Unpack[SharedArguments],
) -> Comparison:
    """Compare methods on a partly labeled collection, by labels held out from all of them.

    Parameters
    ----------
    images
        A folder, an address, a table or shards of images, as for `discover`.
    labels
        A table, data frame or mapping of paths to labels, or one label per image.
    methods
        Names, as in 'cms,gcd' or a list; cms, simgcd and gcd by default. The frozen encoder is
        always compared too.
    labeled
        With `unlabeled`, instead of `images`: a folder with a folder per category.
    unlabeled
        A folder of images without labels.
    path_column
        The column of the table that holds the paths.
    label_column
        The column of the table that holds the labels.
    allow_missing
        Continue if many rows of a table name images that do not exist.
    boxes
        Boxes in the images, each of which is an item: a JSON file of MegaDetector or COCO, a table
        or data frame (path, x, y, width, height and, optionally, label), or a folder of YOLO's text
        files.
    min_confidence
        Leave out boxes with a lower confidence; MegaDetector's typical threshold if not given.
    margin
        Widen boxes on each side by this share of their width and height.
    whole_images
        Images without a box are items.
    repeats
        Number of repetitions, each with other held-out labels and new training runs.
    max_minutes
        Minutes within which to end: training stops in time, and the finished methods are
        compared.
    out
        The folder to write; `runs/<name of the folder or file>-compare` by default.
    device
        'cpu', 'cuda' or 'cuda:1'; the best available one by default.
    resume
        Resume an interrupted comparison; a finished one is returned.
    force
        Overwrite an existing comparison.
    verbose
        Report progress on stderr; otherwise it goes to the logger `shoal`.
    reporter
        Receives the progress instead.
    **settings
        `n_clusters`, `encoder`, `epochs`, `seed`, `input_size`, `config` and `changes`, for all
        methods.

    Returns
    -------
    Comparison
        The ranked methods.

    Examples
    --------
    >>> import shoal
    >>> comparison = shoal.compare("photos/", "labels.csv", methods="cms,gcd")  # doctest: +SKIP
    >>> comparison.best.method, comparison.best.ties, comparison.command  # doctest: +SKIP
    """
    began_at = time.monotonic()
    reporter = reporter or default_reporter(verbose=verbose)
    source = ImageSource(
        images=images,
        labels=labels,
        labeled=labeled,
        unlabeled=unlabeled,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
        boxes=boxes,
        min_confidence=min_confidence,
        margin=margin,
        whole_images=whole_images,
    )
    comparison = choose_comparison(methods, repeats=repeats, max_minutes=max_minutes, **settings)
    job = prepare_comparison(
        source,
        comparison,
        out=out,
        device=device,
        resume=resume,
        force=force,
        reporter=reporter,
        began_at=began_at,
    )
    run_job(job)
    return Comparison.open(job.run.path)


def prepare_comparison(
    source: ImageSource,
    comparison: ComparisonSettings,
    *,
    out: AnyPath | None,
    device: AnyDevice,
    **options: Any,
) -> ComparisonJob:
    """Read the images; arguments as for `compare`, `options` are fields of the job."""
    folder = source.default_folder
    folder = folder.with_name(f"{folder.name}-compare") if out is None else Path(out)
    return ComparisonJob(
        collection=source.read(),
        settings=comparison.frozen,
        comparison=comparison,
        command_for=lambda config: discover_command(source, config),
        run=Run(folder),
        device=choose_device(device),
        **options,
    )


def discover_command(source: ImageSource, config: Path) -> str:
    """Return the command that runs `discover` with a config; a Python call if the images are not
    files."""
    paths = [source.images, source.labels, source.labeled, source.unlabeled, source.boxes]
    if not all(isinstance(path, str | os.PathLike | None) for path in paths):
        return f"shoal.discover(images, labels, config={str(config)!r})"
    words = ["shoal", "discover"]
    if source.images is not None:
        words.append(_as_typed(source.images))
    given = vars(source) | {"images": None, "margin": source.margin or None, "config": config}
    for name, value in given.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(_as_typed(value))
    return shlex.join(words)


def _as_typed(value: object) -> str:
    """Return a value as on a command line, an address with both its slashes."""
    if isinstance(value, os.PathLike):
        return str(as_address(value) or value)  # a Path drops one of them
    return str(value)
