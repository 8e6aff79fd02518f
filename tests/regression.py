"""Run a fixed set of small commands and calls, and compare what they write with what another commit wrote.

    git checkout main && python tests/regression.py --write before.json
    git checkout mine && python tests/regression.py --compare before.json --ignore-text

Digests hold for one machine and one set of packages, because processors round differently: write the
file yourself at the commit you start from, and do not commit it.

The file maps a case to its files, a file to its values. A value is a short entry as it is, or of a long
one the shape, mean, standard deviation and the first digits of the SHA-256 of its decoded content. Times,
paths, versions and accounts are left out. Sentences, logs, pages and figures are under the key `text` of
their case. Only changed values (and, without --ignore-text, changed texts) make the exit status 1; what is
gone or new does with --strict.

Everything is done through `python -m shoal`, in this process, and names of `shoal.__all__`, so that it
keeps working when the inside changes.
"""

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ |= {"SHOAL_ENGINE": "torch", "CUDA_VISIBLE_DEVICES": "", "GOMP_SPINCOUNT": "0"}

import numpy as np
import torch
import yaml
from matplotlib.figure import Figure
from PIL import Image
from safetensors.numpy import load_file

import shoal

# --- What a file holds -------------------------------------------------------------------------------

VOLATILE = {
    *("started", "finished", "seconds", "at", "classified_at", "modified"),  # times
    *(
        "command",
        "device",
        "python",
        "platform",
        "packages",
        "by",
        "classified_by",
    ),  # who and where
    "fingerprint",  # of all settings: changes with the name of any of them
}
TEXTS = {".html", ".svg", ".txt", ".log", ".md", ".tex", ".py"}
STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:?00|Z| UTC)?")
DURATION = re.compile(r"\b(about |a few |less than )*(an? |[\d.,]+ ?)?(s|seconds?|minutes?)\b")
HASH = re.compile(r"(?<=_)[0-9a-f]{12}\b")  # in names of cells; of paths too
PROSE = re.compile(r"\S \S+ \S")
Record = dict[str, Any]
"""Name -> value, and under `text` the same of texts."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def summary(array: np.ndarray) -> str:
    """Shape, mean, standard deviation and digest of numbers; of anything else without the two in between."""
    array = np.ascontiguousarray(array)
    numbers = ""
    if array.dtype.kind in "biuf" and not np.isnan(array).all():
        wide = array.astype(np.float64)
        numbers = f" mean {np.nanmean(wide):.6g} std {np.nanstd(wide):.6g}"
    return f"{array.dtype}{list(array.shape)}{numbers} {digest(array.tobytes())}"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested objects under its dotted name; rows of a table become columns."""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        keys = dict.fromkeys(key for each in value for key in each)
        value = {key: [each.get(key) for each in value] for key in keys}
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in VOLATILE:
                yield from leaves(each, f"{name}.{key}" if name else str(key))
    else:
        yield name or "content", value


def numeric(column: list[Any]) -> np.ndarray | None:
    """A column of numbers as an array, NaN where one is missing; None for any other column."""
    filled = [np.nan if each in (None, "") else each for each in column]
    try:
        return np.array(filled, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def is_prose(value: Any) -> bool:
    if isinstance(value, list):
        return any(is_prose(each) for each in value)
    return isinstance(value, str) and bool(PROSE.search(value))


def described(value: Any) -> Any:
    """What is stored of a value."""
    if isinstance(value, np.ndarray):
        return summary(value)
    if isinstance(value, bytes):
        return digest(value)
    if isinstance(value, list) and len(value) > 4:
        array = numeric(value)
        if array is None:
            text = json.dumps(value, sort_keys=True, default=str)
            return f"list[{len(value)}] {digest(text.encode())}"
        return summary(array)
    return value


def decoded(file: Path, work: Path) -> Any:
    """The content of a file: nested objects, columns, arrays, or bytes."""
    kind = file.suffix
    if kind == ".npy":
        return np.load(file)
    if kind == ".npz":
        return dict(np.load(file))
    if kind == ".safetensors":
        return load_file(file)
    if kind == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(file).to_pylist()
    if kind in (".zip", ".xlsx"):
        with zipfile.ZipFile(file) as members:
            return {name: members.read(name) for name in sorted(members.namelist())}
    data = file.read_bytes()
    if kind not in {".json", ".jsonl", ".yaml", ".csv", ".tsv", *TEXTS}:
        return data
    text = data.decode().replace(str(work), "WORK")
    if kind == ".json":
        return json.loads(text)
    if kind == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if kind == ".yaml":
        return yaml.safe_load(text)
    if kind in (".csv", ".tsv"):
        return list(csv.DictReader(io.StringIO(text), delimiter="\t" if kind == ".tsv" else ","))
    return text


def record(folder: Path, work: Path) -> Record:
    """What the files of a case hold."""
    values: Record = {}
    texts: Record = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.name.endswith(".lock"):
            continue
        name = HASH.sub("HASH", file.relative_to(folder).as_posix())
        assert name not in values
        content = decoded(file, work)
        if file.suffix in TEXTS:
            plain = HASH.sub("HASH", DURATION.sub("DURATION", STAMP.sub("TIME", content)))
            texts[name] = digest(plain.encode())
            if file.suffix == ".html":
                tags = {tag: content.count(f"<{tag}") for tag in ("img", "svg", "tr")}
                values[name] = tags
            continue
        values[name] = {}
        for key, value in leaves(content):
            if is_prose(value):
                plain = DURATION.sub("DURATION", json.dumps(value, ensure_ascii=False))
                texts[f"{name} {key}"] = digest(plain.encode())
            else:
                values[name][key] = described(value)
    return {**values, "text": texts}


# --- What is run -------------------------------------------------------------------------------------

COLORS = {
    "red": (190, 60, 60),
    "green": (60, 180, 60),
    "blue": (60, 60, 190),
    "yellow": (180, 180, 60),
    "cyan": (60, 170, 180),
    "purple": (150, 60, 170),
    "orange": (210, 130, 50),
    "gray": (120, 120, 120),
}
KNOWN = list(COLORS)[:6]
N_EACH = 12


def draw(rng: np.random.Generator, color: tuple[int, int, int], side: int) -> np.ndarray:
    """A noisy patch whose color is a little off, so that some are hard to tell apart."""
    shade = np.array(color) + rng.normal(0, 18, 3)
    pixels = shade + rng.integers(-40, 41, size=(side, side, 3))
    return pixels.clip(0, 255).astype(np.uint8)


class Work:
    """A folder with a small collection and a tiny encoder, and a folder per case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ["SHOAL_CACHE"] = str(self.folder / "cache")
        self.photos = self.folder / "photos"
        self.labels = self.folder / "labels.csv"
        self.truth = self.folder / "truth.csv"
        self.new = self.folder / "new"
        self.encoder = self.folder / "encoder"
        self._write_photos()
        self._write_encoder()

    def _write_photos(self) -> None:
        rng = np.random.default_rng(0)
        rows = []
        for i in range(N_EACH * len(COLORS)):
            rows.append((f"photo-{i * 37 % 97:03d}.png", list(COLORS)[i % len(COLORS)]))
        for folder in (self.photos, self.new):
            folder.mkdir()
        for name, color in rows:
            Image.fromarray(draw(rng, COLORS[color], 20)).save(self.photos / name)
        for i, color in enumerate([*COLORS.values(), (255, 255, 255)]):
            Image.fromarray(draw(rng, color, 24)).save(self.new / f"new-{i}.png")
        first_half = rows[: len(rows) // 2]
        labeled = [row for row in first_half if row[1] in KNOWN]
        for file, table in ((self.labels, labeled), (self.truth, rows)):
            with file.open("w", newline="") as out:
                csv.writer(out).writerows([("path", "label"), *table])

    def _write_encoder(self) -> None:
        """A ViT with random weights."""
        from transformers import ViTConfig, ViTModel, logging

        logging.disable_progress_bar()
        torch.manual_seed(0)
        config = ViTConfig(image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=2,
                           num_attention_heads=2, intermediate_size=32)  # fmt: skip
        ViTModel(config).save_pretrained(self.encoder)
        half = [0.5, 0.5, 0.5]
        sees = {"image_mean": half, "image_std": half, "size": 16}
        (self.encoder / "preprocessor_config.json").write_text(json.dumps(sees))

    def path(self, case: str) -> Path:
        """The folder of the running case."""
        folder = self.folder / "cases" / case
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run_of(self, case: str) -> Path:
        """The run folder that a case has written; the case is run where it has not been."""
        folder = self.path(case) / "run"
        if not folder.exists():
            CASES[case](self, case)
        return folder

    def copy_of(self, case: str, to: str) -> Path:
        """A copy of the run of one case, for another one that writes into it."""
        return Path(shutil.copytree(self.run_of(case), self.path(to) / "run"))

    def shoal(self, case: str, *words: object, name: str = "") -> None:
        """Run a command as `python -m shoal` does; what it prints is written beside what it writes."""
        stdout = io.StringIO()
        stderr = io.StringIO()
        code: Any = 0
        before = sys.argv
        sys.argv = ["shoal", *map(str, words)]
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                runpy.run_module("shoal", run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        sys.argv = before
        printed = stdout.getvalue()
        if printed.startswith("{"):
            printed = json.loads(printed)
        stem = name or str(words[0])
        shown = {"exit_code": code, "stdout": printed}
        (self.path(case) / f"{stem}.console.json").write_text(json.dumps(shown))
        (self.path(case) / f"{stem}.stderr.txt").write_text(stderr.getvalue())

    def collection(self) -> list[object]:
        """The arguments that name images, labels and encoder."""
        return [self.photos, "--labels", self.labels, "--encoder", self.encoder]

    def discover(self, case: str, *words: object) -> None:
        self.shoal(case, "discover", *self.collection(), "--input-size", 16, *words,
                   "--out", self.path(case) / "run", "--json")  # fmt: skip


SMALL = ["--set", "training.batch_size=16"]
HEAD = [word for each in ("width=24", "dim=12") for word in ("--set", f"head.{each}")]
LONG = ["--epochs", 2, *SMALL, *HEAD, "--set", "inference.shift.n_neighbors=4"]
METHODS: dict[str, list[object]] = {
    "gcd": HEAD,
    "dccl": HEAD,
    "gpc": HEAD,
    "simgcd": HEAD,
    "pim": [*HEAD, "--set", "fit_steps=10"],
    "orca": [],
    "rankstats": [],
    "promptcal": [*HEAD, "--set", "memory_size=64", "--set", "n_negatives=16"],
    "uno": ["--set", "width=24", "--set", "dim=12"],
}
"""What makes each method small; cms is in the other cases."""


def discover_with(*words: object) -> Callable[[Work, str], None]:
    return lambda work, case: work.discover(case, *words)


def train_method(method: str) -> Callable[[Work, str], None]:
    return discover_with("--method", method, "--epochs", 1, *SMALL, *METHODS[method],
                         "--n-clusters", 8)  # fmt: skip


def resume(work: Work, case: str) -> None:
    """A run that is killed after its first epoch and then resumed is the one that was never killed."""
    run = work.path(case) / "run"
    words = ["discover", *work.collection(), "--input-size", 16, *LONG, "--out", run, "--json"]
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet, env={**os.environ, "OMP_NUM_THREADS": "2"})
    while process.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    work.shoal(case, *words, "--resume")
    whole = record(work.run_of("trained"), work.folder)
    resumed = record(run, work.folder)
    differing = [name for name in whole if name != "text" and whole[name] != resumed.get(name)]
    (work.path(case) / "resumed.json").write_text(json.dumps({"unequal": differing}))


def compare(work: Work, case: str) -> None:
    words = ["--methods", "cms,gcd", "--input-size", 16, "--epochs", 1, *SMALL, *HEAD, "--json"]
    work.shoal(case, "compare", *work.collection(), *words, "--out", work.path(case) / "run")


def assign(work: Work, case: str) -> None:
    for name in ("trained", "frozen"):
        out = work.path(case) / f"{name}.csv"
        work.shoal(case, "assign", work.run_of(name), work.new, "--out", out, name=name)
    rows = shoal.load(work.run_of("trained")).predict(work.new)
    (work.path(case) / "predict.txt").write_text("\n".join(map(repr, rows)))


def evaluate(work: Work, case: str) -> None:
    run = work.copy_of("trained", case)
    work.shoal(case, "evaluate", run, "--truth", work.truth, "--json")
    work.shoal(case, "report", run, "--figures", work.path(case) / "figures", "--json")


def review(work: Work, case: str) -> None:
    """Decide about a run, and discover again from what was decided, without training and with."""
    run = shoal.load(work.copy_of("frozen-k", case))
    names = [row.category for row in run.categories]
    novel = [row.category for row in run.categories if row.is_novel]
    members = {
        name: [row.path for row in run.assignments if row.category == name] for name in names
    }
    run.rename(novel[0], "first found")
    run.confirm("first found")
    run.confirm(images=members[names[0]][:3])
    run.flag(members[names[1]][:1])
    run.reject(members[names[2]][:2])
    run.move(members[names[2]][2:4], names[0])
    run.move(members[names[3]][:1], "quite new")
    run.split(names[4])
    run.merge([names[1], novel[-1]])
    run.undo()
    run.redo()
    run.undo()
    for name in ("again", "trained"):
        words = ["--train", *LONG] if name == "trained" else []
        out = work.path(case) / name
        work.shoal(
            case, "discover", "--review", run.path, *words, "--out", out, "--json", name=name
        )


def export(work: Work, case: str) -> None:
    run = work.run_of("review")
    for kind in ("imagefolder", "hf", "csv", "spreadsheet", "labelstudio", "fiftyone", "projector"):
        out = work.path(case) / kind
        work.shoal(case, "export", run, "--to", kind, "--out", out, "--json", name=kind)


def cluster(work: Work, case: str) -> None:
    """Embeddings of the encoder as it comes, and what is found in them."""
    file = work.path(case) / "features.npz"
    work.shoal(case, "embed", *work.collection(), "--input-size", 16, "--out", file, "--json")
    run = work.path(case) / "run"
    work.shoal(case, "cluster", file, "--out", run, "--json")
    work.shoal(case, "assign", run, file, "--json")


def estimators(work: Work, case: str) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(10), 40)
    x = (rng.normal(size=(10, 32))[truth] + rng.normal(scale=1.1, size=(400, 32))).astype(
        np.float32
    )
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where((truth < 6) & (np.arange(400) % 2 == 0), truth, shoal.UNLABELED)
    one_hot = np.eye(7, dtype=np.float32)[rng.integers(0, 7, 60)]
    shifted = shoal.MeanShiftClustering()
    arrays = {
        "mean_shift": shifted.fit_predict(x, y),
        "mean_shift_predict": shifted.predict(x[::3] + 0.01),
        "mean_shift_k": shoal.MeanShiftClustering(n_clusters=10).fit_predict(x, y),
        "mean_shift_unlabeled": shoal.MeanShiftClustering(n_clusters=10).fit_predict(x),
        "ward": shoal.WardClustering(n_clusters=10).fit_predict(x),
        "ward_linkage": shoal.ward_linkage(x),
        "ward_linkage_ties": shoal.ward_linkage(one_hot),
    }
    np.savez(work.path(case) / "arrays.npz", **arrays)
    accuracy = shoal.gcd_accuracy(truth, arrays["mean_shift"], truth < 6)
    found = {name: getattr(accuracy, name) for name in ("all", "known", "novel")}
    (work.path(case) / "accuracy.json").write_text(json.dumps(found))


def reproduce(work: Work, case: str) -> None:
    """Rows of two methods in the main table, on a made-up CIFAR-100 of six images a class."""
    rng = np.random.default_rng(0)
    root = work.folder / "cifar-100-binary"
    root.mkdir()
    colors = rng.integers(0, 256, size=(100, 3))
    for part, n_each in (("train", 6), ("test", 1)):
        records = bytearray()
        for label in np.tile(np.arange(100), n_each):
            pixels = draw(rng, colors[label], 32)
            records += bytes([label // 5, label]) + pixels.transpose(2, 0, 1).tobytes()
        (root / f"{part}.bin").write_bytes(records)
    work.shoal(case, "reproduce", 1, "--root", f"cifar100={root}", "--encoder", work.encoder,
               "--input-size", 16, "--epochs", 1, "--methods", "agglomerative,cms",
               "--set", "training.batch_size=64", *HEAD, "--out", work.path(case) / "out",
               "--json")  # fmt: skip


CASES: dict[str, Callable[[Work, str], None]] = {
    "estimators": estimators,
    "frozen": discover_with("--no-train"),
    "frozen-k": discover_with("--no-train", "--n-clusters", 8),
    "trained": discover_with(*LONG),
    "trained-k": discover_with(*LONG, "--n-clusters", 8, "--answer", "trained", "--seed", 1),
    "paper": discover_with(*LONG, "--protocol", "paper"),
    **{method: train_method(method) for method in METHODS},
    "agglomerative": discover_with("--method", "agglomerative", "--n-clusters", 8),
    "resumed": resume,
    "compare": compare,
    "assign": assign,
    "evaluate": evaluate,
    "review": review,
    "export": export,
    "cluster": cluster,
    "reproduce": reproduce,
}


DRAWN = ("trained", "evaluate", "compare")
"""Cases whose pages have their figures; to draw them takes longer than all the rest."""


def run_cases(names: list[str], folder: Path) -> dict[str, Record]:
    """Run cases in a new folder: what each has written."""
    torch.set_num_threads(2)
    work = Work(folder)
    found = {}
    for name in names:
        start = time.process_time()
        if not (work.folder / "cases" / name).exists():  # another case may have needed it
            figures = contextlib.nullcontext()
            if name not in DRAWN:
                figures = mock.patch.object(Figure, "draw")
            with figures:
                CASES[name](work, name)
        found[name] = record(work.path(name), work.folder)
        print(f"{name:<14} {time.process_time() - start:5.1f} s", file=sys.stderr, flush=True)
    return found


# --- What differs ------------------------------------------------------------------------------------


def differences(before: Any, after: Any, place: str = "") -> Iterator[tuple[str, str, str]]:
    """(changed, gone or new; where; what) of every value that is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            where = f"{place} | {key}" if place else key
            if key not in after:
                yield "gone", where, ""
            elif key not in before:
                yield "new", where, ""
            else:
                yield from differences(before[key], after[key], where)
    elif before != after:
        yield "changed", place, f"{before} -> {after}"


def without_text(found: dict[str, Record]) -> dict[str, Record]:
    return {
        case: {file: values for file, values in files.items() if file != "text"}
        for case, files in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="store what is found")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with what was stored")
    parser.add_argument("--only", action="append", choices=list(CASES), help="one case; repeatable")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep what is written here")
    parser.add_argument("--ignore-text", action="store_true", help="leave sentences and pages out")
    parser.add_argument("--strict", action="store_true", help="fail for what is gone or new too")
    asked = parser.parse_args()
    if (asked.write is None) == (asked.compare is None):
        parser.error("give --write FILE or --compare FILE")
    names = asked.only or list(CASES)
    if asked.work is not None:
        found = run_cases(names, asked.work)
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = run_cases(names, Path(folder))
    if asked.write is not None:
        asked.write.write_text(json.dumps(found, indent=1))
        return 0
    before = {
        name: files
        for name, files in json.loads(asked.compare.read_text()).items()
        if name in names
    }
    found = json.loads(json.dumps(found))
    if asked.ignore_text:
        before = without_text(before)
        found = without_text(found)
    differing = list(differences(before, found))
    for kind, place, what in differing:
        print(f"{kind:<8} {place}  {what}".rstrip())
    n_changed = sum(kind == "changed" for kind, _, _ in differing)
    print(f"{n_changed} changed, {len(differing) - n_changed} gone or new")
    return int(n_changed > 0 or (asked.strict and bool(differing)))


if __name__ == "__main__":
    sys.exit(main())
