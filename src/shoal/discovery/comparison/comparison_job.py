"""Methods compared on one collection: images and some labels in, a folder with a run of each method and a table out.

Images are decoded and embedded once. Labels are kept from all methods alike; every method trains without them, on the
same tokens and views, and its answer is a run of its own inside the comparison's folder. A killed comparison goes on
where it stopped: finished methods stay, the others go on from their last epoch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shoal.data.collection import Collection
from shoal.device import choose_device, encoder_device, seed_everything
from shoal.discovery.answers import FROZEN, Answer, make_answer
from shoal.discovery.comparison.broadcast import broadcast_trainings, follow_comparison
from shoal.discovery.comparison.comparison_result import PAGE, Comparison
from shoal.discovery.comparison.comparison_settings import ComparisonSettings, name_of
from shoal.discovery.comparison.judge_methods import conclude, judge, kept_table
from shoal.discovery.comparison.label_draw import LabelDraw, doubt_draw, withhold_labels
from shoal.discovery.comparison.train_methods import Trainings, keep_run
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.first_answer import cluster_frozen
from shoal.discovery.read_and_embed import (
    Check,
    Readable,
    broadcast_embedding,
    check_decodable,
    engine_of,
    read_and_embed,
    tell_found,
)
from shoal.discovery.reporter import NOTE, Reporter
from shoal.discovery.run_folder import held_folder, start_run
from shoal.distributed import flag_from_main, is_main, others_waiting, processes
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import move_encoder
from shoal.encoders.engines import use_engine
from shoal.encoders.vision import Encoder
from shoal.files import write_text
from shoal.methods.clusters import Representation
from shoal.runs import Run, check_not_held
from shoal.words import doubt_labels

Command = Callable[[str], str]
"""From the name of a row to the command that runs it on everything."""


def compare_images(
    collection: Collection,
    out: Path | str,
    settings: ComparisonSettings,
    *,
    command_for: Command,
    device: str | torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    command: str = "",
    reporter: Reporter | None = None,
) -> Comparison:
    """Compare methods on a collection, and write what was found to the folder `out`.

    `resume` goes on with a comparison that was interrupted, and leaves a finished one as it is; `force` starts over.
    The folder is locked meanwhile. Several processes share embedding, every training and clustering; the main one does
    the rest.
    """
    reporter = reporter or Reporter()
    run = Run(Path(out))
    main_device = choose_device(device)
    if is_main():
        check_not_held(out)
    told = tell_found(collection, settings.first.pixel_size, reporter) if is_main() else []
    check_kept(collection, settings)
    check_encoders(settings)
    with processes(main_device), use_engine(engine_of(run) if resume else None):
        seed_everything(settings.seed)
        result = None
        if is_main():
            work = _Work(collection, run, settings, main_device, resume, reporter, command_for)
            with others_waiting():
                result = _compare(work, encoder_device(device), force, command, told)
        else:
            follow_comparison(collection, run, settings, main_device, resume)
        flag_from_main(True, main_device)  # until then the others help where they are called
    return result or Comparison.open(run.path)


def _compare(
    work: "_Work", trunk_device: torch.device, force: bool, command: str, told: Sequence[str]
) -> Comparison:
    """Take the folder, unless it holds a finished comparison, and do in it what is left to do."""
    settings = work.settings

    check_images = partial(
        check_decodable, work.collection, settings.first, work.reporter, _checker(settings)
    )
    how: dict[str, Any] = {"resume": work.resume, "force": force, "check_images": check_images}
    with held_folder(work.run, settings, work.collection, **how) as checksum:
        if checksum is None:
            return _leave(work)
        return work.do(move_encoder(_load(settings.first), trunk_device), checksum, command, told)


def check_kept(collection: Collection, settings: ComparisonSettings) -> list[LabelDraw]:
    """Refuse a collection from which too few labels can be kept, or too little is left for a method."""
    draws = [withhold_labels(collection, settings.first, draw) for draw in range(settings.draws)]
    for each in settings.methods:
        withhold_labels(collection, each)
    return draws


def check_encoders(settings: ComparisonSettings) -> None:
    """Refuse blocks to be trained that an encoder does not have, before any image is read."""
    for n_tail_blocks in {
        getattr(each.of_method, "n_tail_blocks", None) for each in settings.methods
    }:
        _load(settings.first, n_tail_blocks)


def _checker(settings: ComparisonSettings) -> Check:
    """Refuses a collection that `check_kept` refuses."""

    def check(collection: Collection, _: DiscoverySettings) -> None:
        check_kept(collection, settings)

    return check


def _load(settings: DiscoverySettings, n_tail_blocks: int | None = None) -> Encoder:
    chosen = settings.of_method
    return load_encoder(chosen.encoder, n_tail_blocks=n_tail_blocks, input_size=chosen.input_size)


def _leave(work: "_Work") -> Comparison:
    """Say of a finished comparison that there is nothing left to do, to the other processes too."""
    work.reporter.say(f"{work.run.path} is finished, there is nothing left to do")
    broadcast_embedding(False, work.device)
    broadcast_trainings([], work.device)
    return Comparison.open(work.run.path)


@dataclass(frozen=True)
class _Work:
    """The work on a folder that is held."""

    collection: Collection
    run: Run
    settings: ComparisonSettings
    device: torch.device
    resume: bool
    reporter: Reporter
    command_for: Command

    def do(self, encoder: Encoder, checksum: str, command: str, told: Sequence[str]) -> Comparison:
        """Compare the methods, or finish what was interrupted."""
        began = time.perf_counter()
        run = self.run
        collection = self.collection
        settings = self.settings
        about = {
            "encoder": settings.first.of_method.encoder,
            "device": str(encoder.device),
            "command": command,
        }
        reporter = start_run(
            run, settings, collection, checksum, **about, told=told, reporter=self.reporter
        )
        work = replace(self, reporter=reporter)
        images, frozen = read_and_embed(
            collection, run, encoder, settings.first, work.reporter, check=_checker(settings)
        )
        result = work.compare(images, frozen)
        counts = {"n_images": len(images.collection), "n_labeled": images.collection.n_labeled}
        run.finish(seconds=round(time.perf_counter() - began, 3), **counts)
        if not run.is_stopped:
            run.drop_checkpoints()
        return result

    def compare(self, images: Readable, frozen: Representation) -> Comparison:
        """Keep labels, answer by every method, judge."""
        draws = check_kept(images.collection, self.settings)
        notes = self._say_kept(draws)
        firsts = [self._answer_first(frozen, kept, draw) for draw, kept in enumerate(draws)]
        trainings = Trainings(
            images=images,
            frozen=frozen,
            draws=draws,
            firsts=firsts,
            run=self.run,
            settings=self.settings,
            device=self.device,
            resume=self.resume,
            reporter=self.reporter,
        )
        epochs = trainings.answer_all()
        judged = [judge(self.run.path, name_of(each), draws) for each in self.settings.methods]
        unfinished = [
            name_of(each)
            for each, one in zip(self.settings.methods, judged, strict=True)
            if one is None
        ]
        done = [one for one in judged if one is not None]
        numbers = sorted({first.discovery.n_clusters for first in firsts})
        result = conclude(
            self.run.path,
            done,
            draws,
            seed=self.settings.seed,
            kept={
                "n_images": sum(len(kept.rows) for kept in draws),
                "n_novel": sum(int(kept.is_novel.sum()) for kept in draws),
                "categories": [list(kept.hidden_names) for kept in draws],
                "n_draws": len(draws),
            },
            n_clusters={"is_given": self.settings.first.n_clusters is not None, "asked": numbers},
            epochs=epochs,
            unfinished=tuple(unfinished),
            notes=tuple(notes),
            command=None,
        )
        if images.collection.n_labeled < len(
            images.collection
        ):  # else `shoal discover` would refuse it
            result = replace(result, command=self.command_for(result.best.method))
        self._write(result, kept_table(done, draws))
        return result

    def _say_kept(self, draws: Sequence[LabelDraw]) -> list[str]:
        """Say what is kept; returns what is to be doubted because of it."""
        for draw, kept in enumerate(draws):
            number = f"draw {draw + 1} of {len(draws)}: " if len(draws) > 1 else ""
            self.reporter.say(f"{number}{kept.in_words()}")
        doubt = doubt_draw(draws)
        if doubt:
            self.reporter.say(f"{NOTE}{doubt}")
        return [f"{doubt}."] if doubt else []

    def _answer_first(self, frozen: Representation, kept: LabelDraw, draw: int) -> Answer:
        """The answer of the encoder as it comes, whose number of categories is that of every method."""
        settings = self.settings.first
        given = kept.given
        began = time.perf_counter()
        discovery = cluster_frozen(frozen, given.labels, settings)
        seconds = time.perf_counter() - began
        answer = make_answer(FROZEN, discovery, given, settings)
        kept_run = keep_run(
            self.run, answer, settings, draw, asked=discovery.n_clusters, seconds=seconds
        )
        if draw == 0:
            if settings.n_clusters is None:
                words = answer.in_words(kept_run)
                self.reporter.say(
                    f"without training: {words}; every method is asked for as many categories"
                )
                if doubt := doubt_labels(given.n_labeled, given.n_classes):
                    self.reporter.say(f"{NOTE}{doubt}")
            else:
                self.reporter.say(
                    f"every method is asked for {discovery.n_clusters} categories, as given"
                )
        return answer

    def _write(self, result: Comparison, kept: str) -> None:
        from shoal.report.comparison import render_comparison

        self.run.write_json("comparison", result.to_dict())
        write_text(self.run.path / "kept.csv", kept)
        with self.reporter.progress("writing the page"):
            write_text(self.run.path / PAGE, render_comparison(self.run))
