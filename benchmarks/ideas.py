"""Published ideas on top of CMS, each a method of its own here: one trial each, judged by labels kept from it.

    python benchmarks/ideas.py flowers102.zip caltech101.zip cub200-train.zip cifar100-train.zip:50 --seeds 0

    cms          as it is
    simplex      fixed targets, all equally far apart: each cluster is pulled to one, each known class to its cluster's
    hyperbolic   a contrast by distances in a Poincaré ball, whose share grows from 0 to all
    average      images are embedded by the moving average of the networks
    keep         a term that keeps who is whose neighbor in the frozen encoder's space

A trial is what `shoal discover` runs and judges; the row says how many of the judging images are right. Hidden labels
are not looked at. `--only simplex keep` runs some of them, `--epochs 1` is a rehearsal.
"""

import argparse
import copy
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from answers import draw, unpack
from shoal.arrays import UNLABELED, Ints
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.data.readers import read_collection
from shoal.device import choose_device
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.pipeline import discover_images
from shoal.discovery.reporter import SILENT
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.trial_judge import TrialJudge
from shoal.encoders.head import compact, unit
from shoal.encoders.vision import Encoder
from shoal.methods import cms
from shoal.methods.cms import Cms, CmsSettings
from shoal.methods.registry import METHODS
from shoal.training.model import Batch, Epoch, TaskShape

WARMUP = 5
PERIOD = 5
CENTRAL = 0.8
"""Epochs before the first targets are given, epochs between, and the share of a cluster, nearest to its center."""
CURVATURE = 0.05
RADIUS = 2.0
HYPERBOLIC_TEMPERATURE = 0.25
KEEP_TEMPERATURE = 0.1
MOMENTUM = 0.998


class Simplex(Cms):
    """CMS, and half the squared distance of views to the target of their cluster or class (NC-GCD)."""

    targets: Tensor
    cluster_of: Tensor
    target_of: Tensor

    def __init__(self, encoder: Encoder, settings: CmsSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        assert shape.n_clusters is not None
        self.register_buffer("targets", simplex(shape.n_clusters, settings.head.dim))  # (K, D)
        self.register_buffer("cluster_of", torch.full((shape.n_images,), UNLABELED))  # (n,)
        self.register_buffer("target_of", torch.full((max(1, shape.n_known),), UNLABELED))  # (C,)

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Renew the bank and, now and then, the clusters and the targets of the known classes."""
        found = super().begin_epoch(epoch)
        if epoch.number < WARMUP or (epoch.number - WARMUP) % PERIOD:
            return found
        assert self.bank is not None
        rows = unit(self.bank.rows.float())
        n_clusters = len(self.targets)
        clusters = Tree(ward_linkage(rows, device=rows.device)).cut(n_clusters)
        clusters = follow(clusters, self.cluster_of.cpu().numpy(), n_clusters)
        self.cluster_of.copy_(
            torch.from_numpy(np.where(central(rows, clusters, n_clusters), clusters, UNLABELED))
        )
        labels = epoch.labels.cpu().numpy()
        known, own = linear_sum_assignment(
            -overlap(labels, clusters, int(labels.max()) + 1, n_clusters)
        )
        self.target_of[torch.from_numpy(known)] = torch.from_numpy(own).to(self.target_of)
        return found

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Half for labeled views, half for views of unlabeled images that are central in their cluster."""
        losses = super().loss(batch)
        views = unit(batch.gather(batch.outputs["embeddings"]).float())  # (2B, D)
        is_labeled = batch.labels != UNLABELED
        of_image = self.cluster_of[batch.gather(batch.images)]
        own = torch.where(is_labeled, self.target_of[batch.labels.clamp_min(0)], of_image)
        apart = (views - self.targets[own.clamp_min(0)]).square().sum(dim=1)
        parts = [
            masked_mean(apart, which & (own != UNLABELED)) for which in (is_labeled, ~is_labeled)
        ]
        return losses | {"loss": losses["loss"] + 0.5 * parts[0] + 0.5 * parts[1]}


class Hyperbolic(Cms):
    """CMS's losses, whose share shrinks, beside the same by hyperbolic distances (HypCD)."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """(1 - a) · CMS + a · hyperbolic, a from 0 in the first epoch to 1 in the last."""
        losses = super().loss(batch)
        own = batch.outputs["embeddings"]
        weight = self.settings.loss.supervised_weight
        assert self.bank is not None
        how: dict[str, Any] = {
            "attention": self.attention,
            "detach_norm": self.settings.loss.detach_norm,
        }
        shifted = batch.gather(
            self.bank.shift(own, self.neighbors(batch, self.bank), self.shift, **how)
        )
        contrast = hyperbolic_contrast(
            shifted, torch.arange(batch.n_images, device=own.device).repeat(2)
        )
        supervised = hyperbolic_contrast(batch.gather(own), batch.labels)
        share = batch.epoch / max(1, self.settings.training.epochs - 1)
        other = weight * supervised + (1 - weight) * contrast
        return losses | {"loss": (1 - share) * losses["loss"] + share * other}


class Average(Cms):
    """CMS, whose images are embedded by the moving average of its networks; the bank is that of the networks."""

    def __init__(self, encoder: Encoder, settings: CmsSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.mean = nn.ModuleDict(
            {"tail": copy.deepcopy(encoder.tail), "head": copy.deepcopy(self.head)}
        )
        self.mean.requires_grad_(False)
        self.is_averaged = True

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Embeddings of views, by the networks themselves."""
        return {"embeddings": self.head(self.encoder.tail(inputs))}

    def represent(self, inputs: Tensor) -> Tensor:
        """By the average, but for the bank."""
        own = {"tail": self.encoder.tail, "head": self.head}
        parts: Any = self.mean if self.is_averaged else own
        embeddings: Tensor = parts["head"](parts["tail"](inputs))
        return embeddings

    def compact(self, embeddings: Tensor) -> Tensor:
        """In as many columns as the average's bottleneck has."""
        return compact(embeddings, self.mean["head"].basis())

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Renew the bank with the networks as they are."""
        self.is_averaged = False
        try:
            return super().begin_epoch(epoch)
        finally:
            self.is_averaged = True

    def after_step(self, batch: Batch) -> None:
        """Let the average follow."""
        for mean, own in ((self.mean["tail"], self.encoder.tail), (self.mean["head"], self.head)):
            move(mean, own, 1 - MOMENTUM)


class Keep(Cms):
    """CMS, and the divergence between whom a view is near to in the frozen encoder's space and in the trained one."""

    def __init__(self, encoder: Encoder, settings: CmsSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.frozen_tail = copy.deepcopy(encoder.tail).eval().requires_grad_(False)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """CMS, and the divergence."""
        losses = super().loss(batch)
        device = batch.inputs.device
        with (
            torch.no_grad(),
            torch.autocast(device.type, torch.bfloat16, enabled=batch.inputs.is_cuda),
        ):
            frozen = self.frozen_tail(batch.inputs)
        itself = torch.eye(len(batch.labels), dtype=torch.bool, device=device)
        left_out = itself | itself.roll(
            batch.n_images, dims=1
        )  # a view, and the other one of its image
        wanted, found = (
            (rows @ rows.T / KEEP_TEMPERATURE).masked_fill(left_out, -1e4).log_softmax(dim=1)
            for rows in (
                unit(batch.gather(one.float())) for one in (frozen, batch.outputs["embeddings"])
            )
        )
        apart = F.kl_div(found, wanted, reduction="batchmean", log_target=True)
        return losses | {"loss": losses["loss"] + apart}


IDEAS = {"cms": Cms, "simplex": Simplex, "hyperbolic": Hyperbolic, "average": Average, "keep": Keep}


def simplex(n_points: int, dim: int) -> Tensor:
    """(K, D) unit rows, each two of them equally far apart: a cosine of -1 / (K - 1)."""
    basis = torch.linalg.qr(torch.randn(dim, n_points, generator=torch.Generator().manual_seed(0)))[
        0
    ]
    return unit((basis @ (torch.eye(n_points) - 1 / n_points)).T.contiguous())


def overlap(first: Ints, second: Ints, n_first: int, n_second: int) -> np.ndarray:
    """(n_first, n_second) how many images are in each pair of sets; -1 is in none."""
    both = (first != UNLABELED) & (second != UNLABELED)
    found = np.zeros((n_first, n_second))
    np.add.at(found, (first[both], second[both]), 1)
    return found


def follow(clusters: Ints, before: Ints, n_clusters: int) -> Ints:
    """Number clusters (n,) as those before that they overlap most."""
    own, theirs = linear_sum_assignment(-overlap(clusters, before, n_clusters, n_clusters))
    renamed = np.empty(n_clusters, dtype=np.int64)
    renamed[own] = theirs
    return renamed[clusters]


def central(rows: Tensor, clusters: Ints, n_clusters: int) -> np.ndarray:
    """(n,) which images are among the central ones of their cluster."""
    at = torch.from_numpy(clusters).to(rows.device)
    centers = unit(F.one_hot(at, n_clusters).float().T @ rows)
    closeness = (rows * centers[at]).sum(dim=1).cpu().numpy()
    found = np.zeros(len(clusters), dtype=bool)
    for cluster in range(n_clusters):
        own = np.flatnonzero(clusters == cluster)
        found[
            own[np.argsort(-closeness[own], kind="stable")][: max(1, int(CENTRAL * len(own)))]
        ] = True
    return found


def masked_mean(values: Tensor, which: Tensor) -> Tensor:
    return (values * which).sum() / which.sum().clamp_min(1)


def hyperbolic_distances(points: Tensor) -> Tensor:
    """(2B, 2B) distances in a Poincaré ball of rows that are put at one distance from its center."""
    radius = math.tanh(CURVATURE**0.5 * RADIUS) / CURVATURE**0.5
    with torch.autocast(points.device.type, enabled=False):
        rows = unit(points.float())
        squared = 2 * radius**2 * (1 - (rows @ rows.T).clamp(-1 + 1e-6, 1 - 1e-6))
        return (
            torch.acosh(1 + 2 * CURVATURE * squared / (1 - CURVATURE * radius**2) ** 2)
            / CURVATURE**0.5
        )


def hyperbolic_contrast(points: Tensor, labels: Tensor) -> Tensor:
    """Pull rows (2B, D) with the same label together and apart from all others; -1 has no label, and no loss."""
    closeness = -hyperbolic_distances(points) / HYPERBOLIC_TEMPERATURE
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    is_labeled = labels != UNLABELED
    pairs = is_labeled[:, None] & is_labeled[None, :] & ~itself
    positives = pairs & (labels[:, None] == labels[None, :])
    spread = closeness.masked_fill(
        torch.where(is_labeled[:, None], ~pairs, itself), -torch.inf
    ).logsumexp(dim=1)
    n_positives = positives.sum(dim=1)
    losses = spread - (closeness * positives).sum(dim=1) / n_positives.clamp_min(1)
    return masked_mean(losses, n_positives > 0)


@torch.no_grad()
def move(mean: nn.Module, own: nn.Module, share: float) -> None:
    """Let the weights of one network follow those of another; statistics of batches are taken over."""
    for ours, theirs in zip(mean.parameters(), own.parameters(), strict=True):
        ours.lerp_(theirs, share)
    for ours, theirs in zip(mean.buffers(), own.buffers(), strict=True):
        ours.copy_(theirs)


class TrialIsJudged(Exception):
    """Ends a run after its trial, with what was chosen."""


CHOOSE = TrialJudge.choose


def end_after_trial(judge: TrialJudge, embeddings: Tensor, predicted: Ints | None) -> Choice:
    raise TrialIsJudged(CHOOSE(judge, embeddings, predicted))


def try_idea(name: str, root: Path, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """One trial on a folder of class folders, of which half are known, and what the judging images say of it."""
    whole = read_collection(root)
    labels = draw(np.array(whole.labels), 0.5, 0.5, seed)[1]
    given = {
        path: whole.classes[label] if label >= 0 else None
        for path, label in zip(whole.names, labels, strict=True)
    }
    settings = choose_settings(
        n_clusters=len(whole.classes), seed=seed, epochs=chosen.epochs, depths=(1,)
    )
    METHODS[name] = replace(
        cms.METHOD, model=IDEAS[name], title=name, needs_n_clusters=name == "simplex"
    )
    TrialJudge.choose = end_after_trial  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        try:
            discover_images(
                read_collection(root, given),
                Path(folder) / "run",
                replace(settings, method=name),
                device=choose_device(chosen.device),
                reporter=SILENT,
            )
        except TrialIsJudged as judged:
            return {"idea": name, "collection": root.name, "seed": seed, **judged.args[0].to_dict()}
    raise RuntimeError("no trial was run: too few labels")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=IDEAS, default=list(IDEAS))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        roots = [unpack(archive, Path(folder)) for archive in chosen.archives]
        for seed in chosen.seeds:
            for root in roots:
                for name in chosen.only:
                    print(json.dumps(try_idea(name, root, seed, chosen)), flush=True)


if __name__ == "__main__":
    main()
