"""Methods compared on one collection: images and some labels in, a folder with a run of each method
and a table out.

Images are decoded and embedded once. Labels are kept from all methods alike; every method trains
without them, on the same tokens and views, and its answer is a run of its own inside the
comparison's folder. A killed comparison goes on where it stopped: finished methods stay, the others
go on from their last epoch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.data.collection import Collection
from shoal.discovery.answers import FROZEN, TRAINED, cluster, keep_answer, make_answer
from shoal.discovery.comparison.comparison_result import PAGE, Comparison
from shoal.discovery.comparison.comparison_settings import ComparisonSettings, name_of
from shoal.discovery.comparison.judge_methods import judge, kept_table, rank_methods, run_folder
from shoal.discovery.comparison.label_draw import LabelDraw, doubt_draw, withhold_labels
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.first_answer import cluster_frozen
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import NOTE, SILENT
from shoal.discovery.trained.held_out import fit_batch
from shoal.discovery.trained.train_and_answer import with_networks
from shoal.discovery.trained.training import Training, stop_request, train
from shoal.errors import Diverged, TooFewDistinct
from shoal.files import write_text
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.runs import Run
from shoal.words import count, doubt_labels


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """A method in a draw of kept labels; its answer is a run of its own."""

    settings: DiscoverySettings
    """With the number of categories that every method is asked for."""
    draw: int
    kept: LabelDraw
    run: Run

    @property
    def asked(self) -> int:
        """How many categories."""
        assert self.settings.n_clusters is not None
        return self.settings.n_clusters

    @property
    def is_done(self) -> bool:
        """Whether there is an answer, or why there is none."""
        is_written = self.run.has("report.html")
        return self.run.is_finished and (is_written or bool(self.run.provenance.get("failed")))

    def training(self, parent: Run) -> Training:
        """What the method learns from: labels without the kept ones."""
        return Training(
            method=self.settings.method,
            settings=self.settings.trained,
            labels=self.kept.given.labels,
            n_clusters=self.asked,
            folder=parent.path / f"trial-{self.run.path.name}",
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparisonJob(Job):
    """A comparison that nothing stands against yet: it can be looked at with `preview`, or done
    with `run_job`."""

    compared: ComparisonSettings
    command_for: Callable[[str], str]
    """From the name of a row to the command that runs it on everything."""

    @property
    def config(self) -> ComparisonSettings:
        """What config.yaml holds."""
        return self.compared

    @property
    def methods(self) -> Sequence[DiscoverySettings]:
        """The settings of every method, the frozen encoder first."""
        return self.compared.methods

    def check(self, collection: Collection) -> None:
        """Refuse a collection from which too few labels can be kept, or too little is left for a
        method."""
        self.draw_labels(collection)
        for each in self.methods:
            withhold_labels(collection, each)

    def draw_labels(self, collection: Collection) -> list[LabelDraw]:
        """The labels that are kept, in each draw."""
        draws = range(self.compared.draws)
        return [withhold_labels(collection, self.settings, draw) for draw in draws]

    def plan(self, readable: Collection) -> dict[str, Any]:
        """Which labels would be kept, and what would be trained."""
        trained = [each for each in self.methods if each.is_trained]
        return {
            "kept": [kept.in_words() for kept in self.draw_labels(readable)],
            "methods": [name_of(each) for each in self.methods],
            "n_trainings": len(trained) * self.compared.draws,
            "epochs": self._epochs,
            "n_clusters": self.settings.n_clusters,
        }

    @property
    def _epochs(self) -> dict[str, int]:
        """How long each method is trained."""
        trained = [each for each in self.methods if each.is_trained]
        return {each.method: each.trained.training.epochs for each in trained}

    def answer(self, images: EmbeddedImages) -> dict[str, Any]:
        """Keep labels, answer by every method, judge, and write the table."""
        draws = self.draw_labels(images.collection)
        notes = self._say_kept(draws)
        asked = [self._answer_frozen(images, draw, kept) for draw, kept in enumerate(draws)]
        entries = [
            self._entry(settings, draw, kept, asked[draw])
            for draw, kept in enumerate(draws)
            for settings in self.methods[1:]
        ]
        left = [entry for entry in entries if not entry.is_done]
        for entry in left:
            if not entry.settings.is_trained:
                self._answer(entry, images.frozen)
        self._train(images, [entry for entry in left if entry.settings.is_trained])
        self._judge(images.collection, draws, sorted(set(asked)), notes)
        return {}

    def conclude(self) -> None:
        """Do nothing more: the table and its page are written with the result."""

    def _entry(self, settings: DiscoverySettings, draw: int, kept: LabelDraw, asked: int) -> Entry:
        settings = replace(settings, n_clusters=asked)
        if settings.is_trained:
            reporter = self.reporter if draw == 0 else SILENT
            settings = fit_batch(settings, len(kept.given), reporter)
        folder = run_folder(self.run.path, name_of(settings), draw)
        return Entry(settings=settings, draw=draw, kept=kept, run=Run(folder))

    def _say_kept(self, draws: Sequence[LabelDraw]) -> list[str]:
        """Say what is kept; returns what is to be doubted because of it."""
        for draw, kept in enumerate(draws):
            self.reporter.say(f"{self._number(draw)}{kept.in_words()}")
        doubt = doubt_draw(draws)
        if not doubt:
            return []
        self.reporter.say(f"{NOTE}{doubt}")
        return [f"{doubt}."]

    def _number(self, draw: int) -> str:
        n_draws = self.compared.draws
        return f"draw {draw + 1} of {n_draws}: " if n_draws > 1 else ""

    def _answer_frozen(self, images: EmbeddedImages, draw: int, kept: LabelDraw) -> int:
        """Keep the answer of the frozen encoder, whose number of categories is that of every
        method."""
        given = kept.given
        began = time.perf_counter()
        discovery = cluster_frozen(images.frozen, given.labels, self.settings)
        seconds = time.perf_counter() - began
        asked = discovery.n_clusters
        run = Run(run_folder(self.run.path, FROZEN, draw))
        if not (run.is_finished and run.has("report.html")):
            answer = make_answer(FROZEN, discovery, given, self.settings)
            keep_answer(
                self.run, answer, self.settings, run.path, asked=asked, seconds=round(seconds, 3)
            )
        if draw == 0 and self.settings.n_clusters is not None:
            self.reporter.say(f"every method is asked for {asked} categories, as given")
        elif draw == 0:
            self.reporter.say(
                f"without training {count(asked, 'category')} are found; every method is asked for "
                "as many"
            )
            if doubt := doubt_labels(given.n_labeled, given.n_classes):
                self.reporter.say(f"{NOTE}{doubt}")
        return asked

    def _train(self, images: EmbeddedImages, entries: Sequence[Entry]) -> None:
        """Train one after the other, until one is stopped."""
        if not entries:
            return
        planned = tuple(
            entry.training(self.run)
            for entry in entries
            if not get_method(entry.settings.method).reads_images
        )
        n_epochs = sum(entry.settings.trained.training.epochs for entry in entries)
        with stop_request(self.compared.max_minutes) as stop:
            job = replace(self, stop=stop)
            self.reporter.say(
                f"{count(len(entries), 'training')} of {count(n_epochs, 'epoch')} in all. Ctrl-C "
                "once stops and compares the methods that are finished, Ctrl-C twice quits; "
                "--resume continues"
            )
            for entry in entries:
                title = get_method(entry.settings.method).title
                self.reporter.say(f"{self._number(entry.draw)}{title}")
                training = replace(entry.training(self.run), planned=planned)
                if not job._train_one(images, entry, training):
                    break
        images.trunk.free()

    def _train_one(self, images: EmbeddedImages, entry: Entry, training: Training) -> bool:
        """Train a method and keep its answer; False where it was stopped."""
        try:
            learned = train(self, images, training)
        except Diverged as error:
            lr = f"--set {training.method}.training.lr={training.settings.training.lr / 10:g}"
            why = str(error).partition(";")[0]
            why = f"its training went wrong ({why}); try a lower rate, as in {lr}"
            self._fail(entry, why, Run(training.folder).metrics)
        else:
            if learned is None or not learned.is_done:
                return False
            self._answer(entry, learned, training)
        Run(training.folder).abandon()
        return True

    def _answer(
        self, entry: Entry, learned: Representation, training: Training | None = None
    ) -> None:
        """Put the images into categories as the method does, and keep that as a run of its own."""
        began = time.perf_counter()
        try:
            discovery: Discovery = cluster(learned, entry.kept.given.labels, entry.settings)
        except TooFewDistinct as error:
            why = f"training has left nothing to cluster ({error})"
            self._fail(entry, why, learned.metrics)
            return
        seconds = _seconds(learned.metrics) + time.perf_counter() - began
        if training is None:
            answer = make_answer(FROZEN, discovery, entry.kept.given, entry.settings)
        else:
            none = np.empty(0, dtype=np.int64)  # labels that training saw judge no confidence
            answer = make_answer(TRAINED, discovery, entry.kept.given, entry.settings, unseen=none)
            answer = with_networks(answer, training, learned)
        keep_answer(
            self.run,
            answer,
            entry.settings,
            entry.run.path,
            asked=entry.asked,
            seconds=round(seconds, 3),
        )

    def _fail(self, entry: Entry, why: str, metrics: Sequence[dict[str, Any]]) -> None:
        """Leave a method whose training went wrong without an answer: it would go wrong again."""
        self.reporter.say(f"{NOTE}{why}")
        settings = entry.settings
        failed = Run.create(entry.run.path, force=True)
        origin = self.run.provenance
        failed.start(
            settings, seed=settings.seed, device=origin["device"], command=origin["command"]
        )
        failed.finish(failed=why, asked=entry.asked, seconds=round(_seconds(metrics), 3))

    def _judge(
        self,
        collection: Collection,
        draws: Sequence[LabelDraw],
        asked: Sequence[int],
        notes: Sequence[str],
    ) -> None:
        """Judge what is finished by the kept labels, and write the table and the page."""
        from shoal.report.comparison import render_comparison

        path = self.run.path
        names = [name_of(each) for each in self.methods]
        judged = [judge(path, name, draws) for name in names]
        done = [one for one in judged if one is not None]
        finished = [one.method for one in done]
        rows, pairs = rank_methods(done, draws, self.settings.seed)
        command = None
        if collection.n_labeled < len(collection):  # else `shoal discover` would refuse it
            command = self.command_for(rows[0].method)
        result = Comparison(
            path=path,
            rows=rows,
            pairs=pairs,
            kept={
                "n_images": sum(len(kept.rows) for kept in draws),
                "n_novel": sum(int(kept.is_novel.sum()) for kept in draws),
                "categories": [list(kept.hidden_names) for kept in draws],
                "n_draws": len(draws),
            },
            n_clusters={"is_given": self.settings.n_clusters is not None, "asked": list(asked)},
            epochs=self._epochs,
            unfinished=tuple(name for name in names if name not in finished),
            notes=tuple(notes),
            command=command,
        )
        self.run.write_json("comparison", result.to_dict())
        write_text(path / "kept.csv", kept_table(done, draws))
        with self.reporter.progress("writing the page"):
            write_text(path / PAGE, render_comparison(self.run))


def _seconds(metrics: Sequence[dict[str, Any]]) -> float:
    return float(sum(row["seconds"] for row in metrics))
