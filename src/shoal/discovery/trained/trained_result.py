"""The trained result: train the encoder's tail and a head, and compare with the frozen result.

A trial trains without the held-out labels. These then choose between the frozen and the trained
result, and the weight of the frozen embeddings in their blend. If training helps, it continues with
all labels. With too few known categories to hold any out, there is no trial: the encoder is trained
once, and only if the user asks for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from shoal.clustering.blend import USUAL_WEIGHT, blend
from shoal.clustering.iterates import check_distinct, unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.discovery.discovery_settings import SHORT_RECIPE, DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import CLUSTERING, NOTE
from shoal.discovery.results import TRAINED, Result, cluster, make_result
from shoal.discovery.trained.evaluation import Choice, Evaluation, TrialStopping
from shoal.discovery.trained.held_out import (
    MIN_CATEGORIES,
    HeldOut,
    describe_held_out,
    fit_batch,
    hold_out,
)
from shoal.discovery.trained.training import (
    Training,
    note_stopped,
    stop_request,
    train,
    training_deadline,
)
from shoal.distributed import is_started
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.methods.trunk import trunk_key
from shoal.runs import Run
from shoal.training.collapse import is_collapsed
from shoal.words import count, listed, percent

DEEP = 5
"""Number of blocks of the default encoder that a second trial trains on a GPU."""

FINAL_SHARE = 0.4
"""Epochs of the final training with all labels, as a share of those of the trial it continues. Its
held-out accuracy does not differ significantly from that of a full training from scratch
(benchmarks/results/2026-11-17_h200_short_trainings.md)."""

SHORT_NOTE = (
    f"using the recipe {SHORT_RECIPE}, a shorter schedule for machines without a GPU; "
    "--recipe default trains as on a GPU"
)

KEEPING_FROZEN = "Keeping the frozen result."

Results = tuple[Result, Result | None]
"""The result to use, and the other one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """A training run without the held-out labels, and the choice that they made after it."""

    training: Training
    learned: Representation
    choice: Choice

    @property
    def n_correct(self) -> int:
        """Number of held-out images that are correct with the chosen weight."""
        return int(self.choice.chosen.is_correct.sum())

    @property
    def accuracy(self) -> float:
        """Held-out accuracy with the chosen weight."""
        return self.n_correct / self.choice.n_images


def train_and_choose(job: Job, images: EmbeddedImages, frozen: Result) -> Results:
    """Train, cluster, and return the result to use and the other one.

    The other result is None if nothing was trained, or if the trained embeddings have collapsed or
    have too few distinct rows for the number of categories.
    """
    collection = images.collection
    held_out = hold_out(collection, job.settings)
    for line in describe_held_out(collection, held_out):
        job.reporter.report(line)
    settings = fit_batch(job.settings, len(collection), job.reporter)
    evaluation = None
    # Learned attention fits one embedding only, so its blends cannot be compared.
    if held_out.hidden and settings.shift.aggregation != "attention":
        evaluation = Evaluation(
            images=images,
            held_out=held_out,
            frozen_discovery=frozen.discovery,
            settings=settings,
        )
        with job.reporter.progress("evaluating the frozen result"):
            _ = evaluation.frozen_tried  # computed once and cached
    reason = reason_not_to_train(settings, evaluation)
    if reason:
        job.reporter.report(f"Skipping training: {reason}. {KEEPING_FROZEN}")
        return frozen, None
    if settings.recipe == SHORT_RECIPE:
        job.reporter.report(SHORT_NOTE)
    n_clusters = settings.n_clusters
    if get_method(settings.method).needs_n_clusters:
        n_clusters = frozen.discovery.n_clusters
    training = Training(
        method=settings.method,
        settings=settings.trained,
        labels=held_out.labels,
        validation=held_out.validation,
        n_clusters=n_clusters,
        folder=job.run.path,
    )
    with stop_request(training_deadline(job, images, settings.max_minutes)) as stop:
        job = replace(job, settings=settings, stop=stop)
        trainer = _Trainer(job=job, images=images, frozen=frozen, held_out=held_out)
        try:
            if evaluation is None:
                return trainer.train_once(training)
            return trainer.train_by_trial(training, evaluation)
        except TooFewDistinct as error:
            job.reporter.report(
                f"{NOTE}the trained embeddings cannot be clustered ({error}). {KEEPING_FROZEN}"
            )
            return frozen, None


def reason_not_to_train(settings: DiscoverySettings, evaluation: Evaluation | None) -> str:
    """Return why training is skipped: held-out labels could not show that it helps; else ''.

    `evaluation` is None if no category can be held out, or with learned attention.
    """
    if evaluation is not None and not evaluation.frozen_tried:
        return "the embeddings of the held-out images are too similar to evaluate it"
    if settings.train is True or settings.hidden_share == 0:
        return ""
    remedy = "; give --train to train anyway"
    if settings.shift.aggregation == "attention":
        return f"held-out labels cannot evaluate a method with learned attention{remedy}"
    if evaluation is None:
        few = f"fewer than {MIN_CATEGORIES} known categories have two or more labeled images"
        return f"{few}, so no category can be held out to evaluate it{remedy}"
    if not evaluation.can_be_significant:
        is_correct = evaluation.frozen_tried[-1].is_correct
        correct = f"{int(is_correct.sum()):,} of {count(len(is_correct), 'held-out image')}"
        return (
            f"{correct} are assigned correctly without it, so no result could be significantly "
            f"better{remedy}"
        )
    return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Trainer:
    """Trains on the images of a job, and clusters the trained embeddings."""

    job: Job
    images: EmbeddedImages
    frozen: Result
    held_out: HeldOut

    def train_once(self, training: Training) -> Results:
        """Train without a trial; the labels of validation images choose the snapshot."""
        job = self.job
        job.reporter.report(_announcement(training))
        learned = train(job, self.images, training)
        is_requested = job.settings.hidden_share == 0  # by --result trained, --protocol or --set
        if learned is None or (not is_requested and is_collapsed(learned.embeddings)):
            job.reporter.report(KEEPING_FROZEN)
            return self.frozen, None
        weight = 0.0
        cannot_blend = (
            learned.predicted is not None or job.settings.shift.aggregation == "attention"
        )
        estimates = job.settings.n_clusters is None and not uses_frozen_k(job.settings)
        if is_requested or cannot_blend or estimates:
            with job.reporter.progress(CLUSTERING):
                discovery = self._cluster_trained(learned)
        else:
            weight = USUAL_WEIGHT
            # Check before blending: blended with frozen embeddings, collapsed ones look distinct.
            check_distinct(unit_tree(learned.embeddings), self.frozen.discovery.n_clusters)
            job.reporter.report(
                f"{NOTE}no labels are held out to choose the weight of the frozen embeddings; "
                f"using {100 * USUAL_WEIGHT:.0f} %"
            )
            discovery = self._cluster_blend(learned, weight)
        result = with_networks(self._result(discovery), training, learned, weight)
        if not is_requested and not learned.is_done:
            job.reporter.report(
                f"No labels are held out to evaluate unfinished training. {KEEPING_FROZEN}"
            )
            return self.frozen, result
        return result, self.frozen

    def train_by_trial(self, training: Training, evaluation: Evaluation) -> Results:
        """Train without the held-out labels; if they show that this helps, train with all."""
        trial = self._best_trial(training, evaluation)
        if trial is None:
            self.job.reporter.report(KEEPING_FROZEN)
            return self.frozen, None
        final = self._train_with_all_labels(trial)
        self.images.trunk.free()
        chosen = trial.choice.trained
        if chosen.weight == 1:
            return self.frozen, None
        # Confidence is calibrated on the trial, because its training has not seen the held-out
        # labels.
        trial_discovery = self._cluster_blend(trial.learned, chosen.weight, chosen.n_shifts)
        if final is None:
            result = self._result(trial_discovery, calibrated_on=trial_discovery)
            result = with_networks(result, trial.training, trial.learned, chosen.weight)
        else:
            final_training, learned = final
            discovery = self._cluster_blend(learned, chosen.weight, chosen.n_shifts)
            result = self._result(discovery, calibrated_on=trial_discovery)
            result = with_networks(result, final_training, learned, chosen.weight)
        if trial.choice.result == TRAINED:
            return result, self.frozen
        return self.frozen, result

    def _best_trial(self, training: Training, evaluation: Evaluation) -> Trial | None:
        """Run a trial for each depth; return the most accurate, on ties the first.

        No further trial is run after one that was stopped, or in which every held-out image is
        correct. Return None if no trial finished an epoch.
        """
        job = self.job
        depths = depths_to_try(job.settings, job.device)
        job.reporter.report(_announcement(training, depths))
        trials: list[Trial] = []
        for depth in depths:
            trial = self._run_trial(training, depth, evaluation)
            if trial is None:
                break
            trials.append(trial)
            if not trial.learned.is_done or trial.n_correct == trial.choice.n_images:
                break
        if not trials:
            return None
        best = max(trials, key=lambda trial: trial.n_correct)
        tried = []
        accuracies = []
        for trial in trials:
            depth = trial.training.settings.n_tail_blocks
            if trial is not best:
                self.images.trunk.drop(trunk_key(trial.training.settings))
            tried.append({"n_tail_blocks": depth, "accuracy": trial.accuracy})
            accuracies.append(f"{_blocks(depth)} ({percent(trial.accuracy)})")
        trials_done = {"epochs": best.learned.epoch, "trials": tried}
        job.run.write_json("choice", best.choice.to_dict() | trials_done)
        if len(trials) > 1:
            used = _blocks(best.training.settings.n_tail_blocks)
            job.reporter.report(f"held-out accuracy with {listed(accuracies)}; using {used}")
        job.reporter.report(best.choice.in_words())
        return best

    def _run_trial(
        self, training: Training, depth: int | None, evaluation: Evaluation
    ) -> Trial | None:
        """Train `depth` blocks without the held-out labels; return None if no epoch finished."""
        settings = replace(training.settings, n_tail_blocks=depth)
        # The held-out labels choose the snapshot here, not the validation accuracy.
        settings = replace(settings, training=replace(settings.training, snapshot="last"))
        folder = self.job.run.path / f"trial-{depth}"
        training = replace(training, settings=settings, folder=folder)
        # The training with all labels that may follow uses the same pool of views.
        final = replace(training, labels=self.images.collection.labels, validation=None)
        training = replace(training, planned=(training, final))
        stopping = TrialStopping(
            evaluation=evaluation,
            trial=Run(folder),
            n_epochs=settings.training.epochs,
            report=self.job.reporter.report,
        )
        learned = train(self.job, self.images, training, early_stopping=stopping)
        if learned is None:
            return None
        return Trial(training=training, learned=learned, choice=evaluation.choose(learned))

    def _train_with_all_labels(self, trial: Trial) -> tuple[Training, Representation] | None:
        """Train with all labels, including the held-out ones, after a trial that helped.

        A method without warm start trains from scratch, for the number of epochs that was best in
        the trial. Return None if the trial did not help or was stopped, or if this training is
        stopped or collapses; the trained result is then that of the trial.
        """
        job = self.job
        if trial.choice.result != TRAINED or not trial.learned.is_done:
            return None
        job.run.note(trial_epochs=len(trial.learned.metrics))
        settings = trial.training.settings
        epochs = trial.learned.epoch
        start = None
        if get_method(trial.training.method).supports_warm_start:
            epochs = max(1, round(FINAL_SHARE * settings.training.epochs))
            start = trial.learned.model
        snapshot = job.settings.trained.training.snapshot
        shorter = replace(settings.training, epochs=epochs, snapshot=snapshot)
        training = replace(
            trial.training.planned[1],
            settings=replace(settings, training=shorter),
            folder=job.run.path,
            is_warm_start=start is not None,
            planned=trial.training.planned,
        )
        if job.stop():  # the user stopped it while the trial was being evaluated
            note_stopped(job, training, 0)
            return None
        job.reporter.report(f"training with all labels for {count(epochs, 'epoch')}")
        learned = train(job, self.images, training, start=start)
        if learned is None or not learned.is_done:
            return None
        if is_collapsed(learned.embeddings):
            job.reporter.report(
                f"{NOTE}the training with all labels collapsed; using the one without the held-out "
                "labels"
            )
            return None
        return training, learned

    def _cluster_blend(
        self, learned: Representation, weight: float, n_shifts: int | None = None
    ) -> Discovery:
        """Cluster a blend of frozen and trained embeddings, with the frozen result's K and linkage.

        If `n_shifts` is None, labels choose the number of shifts.
        """
        frozen = self.images.frozen
        both = replace(
            learned,
            embeddings=blend(frozen.embeddings, learned.embeddings, weight),
            embed=lambda pixels: blend(frozen.embed(pixels), learned.embed(pixels), weight),
            n_shifts=n_shifts,
            linkage_method=self.frozen.discovery.linkage_method,
        )
        with self.job.reporter.progress(CLUSTERING):
            return self._cluster_with_frozen_k(both)

    def _cluster_trained(self, learned: Representation) -> Discovery:
        """Cluster the trained embeddings alone, as the paper does."""
        settings = self.job.settings
        labels = self.images.collection.labels
        validation = self.held_out.validation
        # Labels cannot choose the linkage: training has seen them.
        learned = replace(learned, linkage_method="ward")
        if uses_frozen_k(settings):
            return self._cluster_with_frozen_k(learned)
        discovery = cluster(learned, labels, settings)
        has_source = discovery.estimate is not None or discovery.n_clusters_source
        if has_source or settings.n_clusters is not None or validation is None:
            return discovery
        # Training estimated K on the validation images: compute that curve for estimate.json.
        tree = unit_tree(torch.as_tensor(discovery.embeddings[validation]))
        inference = settings.method_settings.inference
        estimate = estimate_n_clusters(tree, labels[validation], rule=inference.rule)
        clipped = estimate.clipped_to(inference.min_clusters, inference.max_clusters)
        return replace(discovery, estimate=clipped)

    def _cluster_with_frozen_k(self, learned: Representation) -> Discovery:
        """Cluster with the frozen result's number of categories and its estimate."""
        frozen = self.frozen.discovery
        labels = self.images.collection.labels
        discovery = cluster(learned, labels, self.job.settings, frozen.n_clusters)
        return replace(
            discovery, estimate=frozen.estimate, n_clusters_source=frozen.n_clusters_source
        )

    def _result(self, discovery: Discovery, calibrated_on: Discovery | None = None) -> Result:
        """Name the categories; held-out labels calibrate their confidence."""
        return make_result(
            TRAINED,
            discovery,
            self.images.collection,
            self.job.settings,
            unseen=self.held_out.rows,
            calibrated_on=calibrated_on,
            fallback=self.frozen.named.calibration,
            frozen=self.images.frozen.embeddings.cpu(),
        )


def depths_to_try(settings: DiscoverySettings, device: torch.device) -> tuple[int | None, ...]:
    """Return the numbers of blocks to train, one trial for each.

    These are `settings.depths`, or else the recipe's number and, for the default encoder on a GPU,
    `DEEP`.
    """
    default = settings.n_tail_blocks
    depths: tuple[int | None, ...] = settings.depths or (default,)
    can_go_deeper = settings.method_settings.encoder == DEFAULT_ENCODER and device.type == "cuda"
    if not settings.depths and can_go_deeper and default is not None and default < DEEP:
        depths = (default, DEEP)
    if is_started():
        return depths[:1]  # every process would have to build the views of each depth
    return depths


def _announcement(training: Training, depths: Sequence[int | None] = ()) -> str:
    """Return a message with the number of epochs and blocks to train, and how to stop early."""
    epochs = f"up to {count(training.settings.training.epochs, 'epoch')}"
    if len(depths) > 1:
        epochs += f", once each with {listed([_blocks(depth) for depth in depths])}"
    return (
        f"Training for {epochs}. Ctrl-C stops and keeps the best result so far; a second Ctrl-C "
        "quits. --resume continues after either."
    )


def _blocks(depth: int | None) -> str:
    """Return a depth in words."""
    return "the encoder's own tail" if depth is None else count(depth, "trained block")


def with_networks(
    result: Result, training: Training, learned: Representation, frozen_weight: float = 0.0
) -> Result:
    """Return the result with what is needed to load its networks later."""
    assert learned.model is not None
    return replace(
        result,
        trained_in=training.folder,
        n_tail_blocks=training.settings.n_tail_blocks,
        shape=learned.model.shape,
        frozen_weight=frozen_weight,
    )


def uses_frozen_k(settings: DiscoverySettings) -> bool:
    """Whether the trained result takes the number of categories from the frozen result.

    It does by default: training pulls the labeled images of a category together, so known
    categories no longer resemble novel ones and are a poor basis for an estimate. A method with a
    classifier needs K before training anyway. Only the paper's rule estimates K on the trained
    embeddings of the validation images.
    """
    if settings.n_clusters is not None:
        return False
    estimates_later = settings.trained.inference.rule == "paper"
    return get_method(settings.method).needs_n_clusters or not estimates_later
