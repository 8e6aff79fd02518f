"""Checkpoints: everything a run needs to go on as if it had never stopped, in safetensors files.

    checkpoint.safetensors   the model, the optimizer's state, epoch, metrics so far and which snapshot is the best;
                             without the first two when the run is finished
    best-<epoch>.safetensors the model of that snapshot; older ones are removed once the checkpoint names a newer
    metrics.jsonl            a row per epoch

Batches, views and random neighbors are functions of seed and epoch, so no generator's state needs to be kept. A file
is written whole or not at all: killed at any moment, there is a checkpoint of an epoch. That is the last one or the one
before where checkpoints are small; large ones are written every 20 seconds, because an epoch may take less than its
checkpoint.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from shoal.arrays import nan_to_null
from shoal.distributed import barrier, is_main
from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, make_folder, write_text
from shoal.runs import damaged, reading
from shoal.training.model import Model
from shoal.training.sgd import Optimizer
from shoal.training.validation import Validation

FORMAT = "shoal-3"

OLDER = ("shoal-2",)
"""PreviousCategories formats: tail and head of a finished run are the same in them."""

CHECKPOINT = "checkpoint.safetensors"

OPTIMIZER = "optimizer/"
"""How the names of the optimizer's tensors begin."""

SMALL_BYTES = 10 << 20
"""A checkpoint up to this size is written after every epoch."""

SAVE_EVERY_S = 20.0
"""Seconds of work that a killed run with larger ones may lose, besides an epoch."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Named tensors and a little JSON beside them."""

    tensors: dict[str, Tensor]
    about: dict[str, Any] = field(default_factory=dict)


def write_checkpoint(file: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint whole. One metadata entry, because safetensors writes several in an order left to chance."""
    tensors = {
        name: value.detach().contiguous().cpu() for name, value in checkpoint.tensors.items()
    }
    with atomic_file(file) as out:
        out.write(save(tensors, metadata={FORMAT: json.dumps(checkpoint.about)}))


def read_checkpoint(file: Path) -> Checkpoint:
    """Read a checkpoint, tensors on the CPU."""
    if not file.is_file():
        raise DataError(f"{file}: not there, though the run's checkpoint names it; start again")
    with reading(file):
        try:
            with safe_open(file, framework="pt") as opened:
                entries = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (no mapping)
        except SafetensorError as error:
            raise ValueError(f"no checkpoint: {error}") from error
        version = next((name for name in (FORMAT, *OLDER) if name in entries), None)
        if version is None:
            raise damaged(file, "not a checkpoint of this version of Shoal")
        about = json.loads(entries[version])
    if not isinstance(about, dict):
        raise damaged(file, "what it says of itself is no object")
    return Checkpoint(tensors=tensors, about=about)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a run that needs no more epoch."""
    file = folder / CHECKPOINT
    return file.is_file() and bool(read_checkpoint(file).about.get("is_finished"))


def load_weights(model: Model, tensors: Mapping[str, Tensor], where: str) -> None:
    """Put weights back into a model; a name or shape that does not fit is an error, and nothing is left at random."""
    try:
        model.load_tensors(
            {name: value for name, value in tensors.items() if not name.startswith(OPTIMIZER)}
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{where}: the weights do not fit; was it made with another encoder or method, or is its "
            f"config.yaml or model.json edited? ({reason})"
        ) from error


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What an optimizer remembers of each parameter, by its position: tensors, and plain numbers apart from them."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for position, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{OPTIMIZER}{position}/{name}"] = value
            elif value is not None:
                numbers[f"{position}/{name}"] = value
    return tensors, numbers


def optimizer_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The values of each group of parameters, which a method may change on the way; the schedule sets the rate."""
    groups = optimizer.state_dict()["param_groups"]
    return [
        {name: value for name, value in group.items() if name not in ("params", "lr")}
        for group in groups
    ]


def load_optimizer(
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Put back what an optimizer remembered."""
    kept = {
        name.removeprefix(OPTIMIZER): value
        for name, value in tensors.items()
        if name.startswith(OPTIMIZER)
    }
    state: dict[int, dict[str, Any]] = {}
    for name, value in (kept | dict(numbers)).items():
        position, _, parameter = name.partition("/")
        state.setdefault(int(position), {})[parameter] = value
    ours = optimizer.state_dict()["param_groups"]
    changed = [{**group, **kept} for group, kept in zip(ours, groups, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": changed})


class Journal:
    """What has happened in a run so far, in memory and, with a folder, on the disk. Only the main process writes."""

    def __init__(
        self,
        folder: Path | None,
        model: Model,
        optimizer: Optimizer,
        *,
        keeps_last: bool = False,
    ) -> None:
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        self.keeps_last = keeps_last
        self.identity: dict[str, Any] = {}
        self.metrics: list[dict[str, Any]] = []
        self.best: Validation | None = None
        self.best_epoch = 0
        self._snapshot: dict[str, Tensor] = {}
        self._saved_at: float | None = None

    def begin(self, identity: Mapping[str, Any]) -> int:
        """Start from the beginning; the epoch to do first, counted from 0."""
        self.identity = dict(identity)
        if self.folder is not None and is_main():
            make_folder(self.folder)
            names = (CHECKPOINT, "metrics.jsonl")
            for old in [
                *(self.folder / name for name in names),
                *self.folder.glob("best-*.safetensors"),
            ]:
                old.unlink(missing_ok=True)
        barrier()
        return 0

    def resume(self, identity: Mapping[str, Any]) -> int:
        """Go on from the last checkpoint, or from the beginning where there is none."""
        if self.folder is None or not (self.folder / CHECKPOINT).is_file():
            return self.begin(identity)
        file = self.folder / CHECKPOINT
        checkpoint = read_checkpoint(file)
        check_identity(dict(identity), checkpoint.about["identity"], file)
        self.identity = dict(identity)
        self.metrics = checkpoint.about["metrics"]
        self.best = Validation(**checkpoint.about["best"])
        self.best_epoch = checkpoint.about["best_epoch"]
        if not checkpoint.about.get("is_finished"):
            load_weights(self.model, checkpoint.tensors, str(file))
            groups = checkpoint.about.get(
                "groups", optimizer_groups(self.optimizer)
            )  # earlier checkpoints have none
            load_optimizer(
                self.optimizer, checkpoint.tensors, checkpoint.about["optimizer"], groups
            )
        self._snapshot = read_checkpoint(self._best_file(self.best_epoch)).tensors
        if is_main():
            self._follow_checkpoint()
        return int(checkpoint.about["epoch"])

    def write(self, epoch: int, validation: Validation, row: Mapping[str, Any]) -> None:
        """Record an epoch, counted from 1: its row of metrics, its snapshot if it is the best, and the checkpoint.

        Where the last snapshot is to be kept, each is the best so far.
        """
        is_better = self.keeps_last or validation.is_better_than(self.best)
        self.metrics.append(nan_to_null(row) | {"is_best": is_better})
        if is_better:
            self.best = validation
            self.best_epoch = epoch
            self._snapshot = {
                name: value.detach().clone() for name, value in self.model.saved_tensors().items()
            }
        if self.folder is None or not is_main():
            return
        remembered, numbers = optimizer_state(self.optimizer)
        tensors = self.model.saved_tensors() | remembered
        if self._is_due(tensors):
            self.write_best()
            about = self._about(epoch) | {
                "optimizer": numbers,
                "groups": optimizer_groups(self.optimizer),
            }
            write_checkpoint(self.folder / CHECKPOINT, Checkpoint(tensors=tensors, about=about))
            self._saved_at = time.monotonic()
            self._follow_checkpoint()
        else:
            self._write_metrics()

    def _is_due(self, tensors: Mapping[str, Tensor]) -> bool:
        if self._saved_at is None or time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            return True
        return sum(value.nbytes for value in tensors.values()) <= SMALL_BYTES

    def finish(self, epoch: int) -> None:
        """Drop the last epoch's weights and optimizer from the disk: only the best snapshot is asked for again."""
        if self.folder is not None and is_main():
            about = self._about(epoch) | {"is_finished": True}
            self.write_best()
            write_checkpoint(self.folder / CHECKPOINT, Checkpoint(tensors={}, about=about))
            self._follow_checkpoint()

    def _about(self, epoch: int) -> dict[str, Any]:
        return {
            "epoch": epoch,
            "metrics": self.metrics,
            "identity": self.identity,
            **self._about_best(),
        }

    def _about_best(self) -> dict[str, Any]:
        assert self.best is not None
        return {"best": self.best.to_dict(), "best_epoch": self.best_epoch}

    def write_best(self) -> None:
        """Write the best snapshot, unless it is there: the checkpoint that names it comes after it."""
        if self.folder is None or not is_main():
            return
        file = self._best_file(self.best_epoch)
        if not file.is_file():
            write_checkpoint(file, Checkpoint(tensors=self._snapshot, about=self._about_best()))

    def _write_metrics(self) -> None:
        assert self.folder is not None
        write_text(
            self.folder / "metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in self.metrics)
        )

    def _follow_checkpoint(self) -> None:
        """Bring the other files in line with the checkpoint; a run killed right after writing it has not."""
        assert self.folder is not None
        self._write_metrics()
        for old in self.folder.glob("best-*.safetensors"):
            if old != self._best_file(self.best_epoch):
                old.unlink()

    def restore_best(self) -> Validation:
        """Put the weights of the best snapshot back into the networks."""
        assert self.best is not None
        load_weights(self.model, self._snapshot, "the best snapshot")
        return self.best

    def _best_file(self, epoch: int) -> Path:
        assert self.folder is not None
        return self.folder / f"best-{epoch}.safetensors"


def check_identity(ours: Mapping[str, Any], theirs: Mapping[str, Any], file: Path) -> None:
    """Refuse to resume a run that was made with other settings or other data, and list the differences."""
    a = _flat(json.loads(json.dumps(ours)))
    b = _flat(theirs)
    different = [
        f"{name}: {a.get(name)!r}, was {b.get(name)!r}"
        for name in sorted(a | b)
        if a.get(name) != b.get(name)
    ]
    if different:
        raise UsageError(
            f"{file}: cannot be resumed, because the run was made with other settings: {'; '.join(different)}; "
            "use those, or start a new run"
        )


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{name}": value}
        )
    return flat
