"""Checkpoints: everything a run needs to go on as if it had never stopped, in safetensors files.

checkpoint.safetensors   the model, the optimizer's velocities, epoch, metrics so far and which
snapshot is the best; without the first two when the run is finished best-<epoch>.safetensors the
model of that snapshot; older ones are removed once the checkpoint names a newer metrics.jsonl
a row per epoch

Batches, views and random neighbors are functions of seed and epoch, so no generator's state needs
to be kept. A file is written whole or not at all: killed at any moment, there is a checkpoint of an
epoch. That is the last one or the one before where checkpoints are small; large ones are written
every 20 seconds, because an epoch may take less than its checkpoint.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from shoal.arrays import nan_to_null
from shoal.distributed import barrier, is_main
from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, make_folder, write_text
from shoal.runs import reading
from shoal.training.model import Model
from shoal.training.sgd import Sgd
from shoal.training.validation import Validation

FORMAT = "shoal-3"

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
    """Write a checkpoint whole. One metadata entry, because safetensors writes several in an order
    left to chance."""
    tensors = {
        name: value.detach().contiguous().cpu() for name, value in checkpoint.tensors.items()
    }
    with atomic_file(file) as out:
        out.write(save(tensors, metadata={FORMAT: json.dumps(checkpoint.about)}))


def read_checkpoint(file: Path) -> Checkpoint:
    """Read a checkpoint, tensors on the CPU."""
    with reading(file):
        try:
            with safe_open(file, framework="pt") as opened:
                entries = opened.metadata() or {}
                names = list(opened.keys())
                tensors = {name: opened.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ValueError(f"no checkpoint: {error}") from error
        about = json.loads(entries[FORMAT])
        if not isinstance(about, dict):
            raise ValueError("what it says of itself is no object")
    return Checkpoint(tensors=tensors, about=about)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a run that needs no more epoch."""
    file = folder / CHECKPOINT
    return file.is_file() and bool(read_checkpoint(file).about.get("is_finished"))


def load_weights(model: Model[Any], tensors: Mapping[str, Tensor], where: str) -> None:
    """Put weights back into a model; a name or shape that does not fit is an error, and nothing is
    left at random."""
    try:
        model.load_tensors(
            {name: value for name, value in tensors.items() if not name.startswith(OPTIMIZER)}
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{where}: the weights do not fit; was it made with another encoder or method, or is "
            "its "
            f"config.yaml or model.json edited? ({reason})"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The networks after an epoch, counted from 1, and what the validation images say of them."""

    epoch: int
    validation: Validation
    tensors: dict[str, Tensor]

    @property
    def about(self) -> dict[str, object]:
        """What a checkpoint says of it."""
        return {"best": asdict(self.validation), "best_epoch": self.epoch}


class Journal:
    """What has happened in a run so far, in memory and, with a folder, on the disk. Only the main
    process writes."""

    def __init__(self, folder: Path | None, model: Model[Any], optimizer: Sgd) -> None:
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        self.identity: dict[str, object] = {}
        self.metrics: list[dict[str, Any]] = []
        self.is_finished = False
        self.last: Snapshot | None = None
        """Of the last epoch."""
        self.best: Snapshot | None = None
        """The one that is kept if training ends here."""
        self._saved_at: float | None = None

    @property
    def n_epochs(self) -> int:
        """How many epochs are done."""
        return len(self.metrics)

    def begin(self, identity: Mapping[str, object]) -> None:
        """Start from the beginning."""
        self.identity = dict(identity)
        if self.folder is not None and is_main():
            make_folder(self.folder)
            snapshots = self.folder.glob("best-*.safetensors")
            for old in [self.folder / CHECKPOINT, self.folder / "metrics.jsonl", *snapshots]:
                old.unlink(missing_ok=True)
        barrier()

    def resume(self, identity: Mapping[str, object]) -> None:
        """Go on from the last checkpoint, or from the beginning where there is none."""
        if self.folder is None or not (self.folder / CHECKPOINT).is_file():
            self.begin(identity)
            return
        file = self.folder / CHECKPOINT
        checkpoint = read_checkpoint(file)
        self.identity = dict(identity)
        check_identity(self.identity, checkpoint.about.get("identity", {}), file)
        with reading(file):
            self._load(checkpoint, str(file))
        if is_main():
            self._follow_checkpoint()

    def _load(self, checkpoint: Checkpoint, where: str) -> None:
        about = checkpoint.about
        self.metrics = about["metrics"]
        self.is_finished = about["is_finished"]
        if about["best"] is not None:
            best_epoch = int(about["best_epoch"])
            self.best = Snapshot(
                epoch=best_epoch,
                validation=Validation(**about["best"]),
                tensors=read_checkpoint(self._best_file(best_epoch)).tensors,
            )
        if self.is_finished:
            return
        load_weights(self.model, checkpoint.tensors, where)
        velocities = {
            name.removeprefix(OPTIMIZER): value
            for name, value in checkpoint.tensors.items()
            if name.startswith(OPTIMIZER)
        }
        self.optimizer.load_tensors(velocities)
        self.last = self._snapshot(Validation(**about["last"]))

    def write(
        self,
        validation: Validation,
        row: Mapping[str, Any],
        *,
        is_best: bool,
        is_last: bool = False,
    ) -> None:
        """Record an epoch: its row of metrics, its snapshot if it is the best, and the checkpoint.

        The checkpoint of a last epoch needs no weights: only the best snapshot is asked for again.
        """
        self.metrics.append(nan_to_null(row) | {"is_best": is_best})
        self.is_finished = is_last
        self.last = self._snapshot(validation)
        if is_best:
            self.best = self.last
        if self.folder is None or not is_main():
            return
        tensors: dict[str, Tensor] = {}
        if not is_last:
            velocities = self.optimizer.saved_tensors().items()
            tensors = self.model.saved_tensors()
            tensors |= {f"{OPTIMIZER}{name}": value for name, value in velocities}
            if not self._is_due(tensors):
                self._write_metrics()
                return
        self.write_best()
        about = {
            "metrics": self.metrics,
            "identity": self.identity,
            "is_finished": is_last,
            "last": asdict(validation),
            "best": None,
        }
        if self.best is not None:
            about |= self.best.about
        write_checkpoint(self.folder / CHECKPOINT, Checkpoint(tensors=tensors, about=about))
        self._saved_at = time.monotonic()
        self._follow_checkpoint()

    def _snapshot(self, validation: Validation) -> Snapshot:
        """The networks as they are, after the last epoch."""
        tensors = self.model.saved_tensors().items()
        copied = {name: value.detach().clone() for name, value in tensors}
        return Snapshot(epoch=self.n_epochs, validation=validation, tensors=copied)

    def _is_due(self, tensors: Mapping[str, Tensor]) -> bool:
        if self._saved_at is None or time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            return True
        return sum(value.nbytes for value in tensors.values()) <= SMALL_BYTES

    def write_best(self) -> None:
        """Write the best snapshot, unless it is there: the checkpoint that names it comes after
        it."""
        if self.folder is None or self.best is None or not is_main():
            return
        file = self._best_file(self.best.epoch)
        if not file.is_file():
            write_checkpoint(file, Checkpoint(tensors=self.best.tensors, about=self.best.about))

    def _write_metrics(self) -> None:
        assert self.folder is not None
        rows = "".join(f"{json.dumps(row)}\n" for row in self.metrics)
        write_text(self.folder / "metrics.jsonl", rows)

    def _follow_checkpoint(self) -> None:
        """Bring the other files in line with the checkpoint; a run killed right after writing it
        has not."""
        assert self.folder is not None
        self._write_metrics()
        for old in self.folder.glob("best-*.safetensors"):
            if self.best is None or old != self._best_file(self.best.epoch):
                old.unlink()

    def restore(self, snapshot: Snapshot) -> None:
        """Put the weights of a snapshot back into the networks."""
        load_weights(self.model, snapshot.tensors, "the best snapshot")

    def _best_file(self, epoch: int) -> Path:
        assert self.folder is not None
        return self.folder / f"best-{epoch}.safetensors"


def check_identity(ours: Mapping[str, object], theirs: Mapping[str, object], file: Path) -> None:
    """Refuse to resume a run that was made with other settings or other data, and list the
    differences."""
    new = _flat(json.loads(json.dumps(ours)))
    old = _flat(theirs)
    different = [
        f"{name}: {new.get(name)!r}, was {old.get(name)!r}"
        for name in sorted(new | old)
        if new.get(name) != old.get(name)
    ]
    if different:
        raise UsageError(
            f"{file}: cannot be resumed, because the run was made with other settings: "
            f"{'; '.join(different)}; use those, or start a new run"
        )


def _flat(nested: Mapping[str, object]) -> dict[str, object]:
    """Nested values by dotted name."""
    flat: dict[str, object] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": one for inner, one in _flat(value).items()}
        else:
            flat[name] = value
    return flat
