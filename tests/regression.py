"""Run a fixed set of small commands and calls, and compare what they write with another commit's.

    git checkout main && python tests/regression.py --write before.json
    git checkout mine && python tests/regression.py --compare before.json --ignore-text

Digests are valid for one machine and one set of packages, because processors round differently:
write the file at the commit you start from, and do not commit it.

The file maps a case to its files, and a file to its values. Short values are stored unchanged, long
ones as shape, mean, standard deviation and SHA-256 of the decoded content. Times, paths, versions
and accounts are left out. Sentences, logs, pages and figures are under the key `text` of their
case. The exit status is 1 if a value has changed, if a text has changed (unless --ignore-text is
given), or, with --strict, if anything is missing or new.

All cases use `python -m shoal`, run in this process, and the names in `shoal.__all__`, so that
internals can change.
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
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml
from matplotlib.figure import Figure
from PIL import Image
from safetensors.numpy import load_file

import shoal
from shoal.methods.registry import METHODS, has_setting

TIMES = {"started", "finished", "at", "classified_at"}
PLACES = {"command", "device", "python", "platform", "packages", "by", "classified_by"}

# The fingerprint covers all settings, and changes if one of them is renamed.
VOLATILE = TIMES | PLACES | {"fingerprint"}
TEXTS = (".html", ".svg", ".txt", ".log", ".md", ".tex", ".py")
STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:?00|Z| UTC)?")
DURATION = re.compile(r"\b(about |a few |less than )*(an? |[\d.,]+ ?)?(s|seconds?|minutes?)\b")
CHECKSUM = re.compile(r"(?<=_)[0-9a-f]{12}\b")  # in the names of table cells; it depends on paths
PROSE = re.compile(r"\S \S+ \S")

# File -> its values by dotted name; and `text` -> digests of texts
Record = dict[str, Any]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def text_digest(text: str) -> str:
    for pattern in (STAMP, DURATION, CHECKSUM):
        text = pattern.sub("…", text)
    return digest(text.encode())


def decoded(file: Path, work: Path) -> Any:
    """Return the content of a file: nested objects, rows, arrays, text or bytes."""
    if file.suffix == ".npy":
        return np.load(file)
    if file.suffix == ".npz":
        return dict(np.load(file))
    if file.suffix == ".safetensors":
        return load_file(file)
    if file.suffix in (".zip", ".xlsx"):
        with zipfile.ZipFile(file) as members:
            return {name: members.read(name) for name in members.namelist()}
    if file.suffix not in (".json", ".jsonl", ".yaml", ".csv", ".tsv", *TEXTS):
        return file.read_bytes()
    text = file.read_text(encoding="utf-8")
    for path in (str(work), str(work).replace("_", r"\_")):  # as escaped in LaTeX
        text = text.replace(path, "WORK")
    if file.suffix == ".json":
        return json.loads(text)
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if file.suffix == ".yaml":
        return yaml.safe_load(text)
    if file.suffix in (".csv", ".tsv"):
        delimiters = {".csv": ",", ".tsv": "\t"}
        return list(csv.DictReader(io.StringIO(text), delimiter=delimiters[file.suffix]))
    return text


def leaves(value: Any, name: str = "content") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested objects under its dotted name; rows of a table become columns."""
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        value = {key: [row.get(key) for row in value] for row in value for key in row}
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in VOLATILE and not key.startswith("seconds"):
                yield from leaves(each, f"{name}.{key}")
    else:
        yield name, value


def is_prose(value: Any) -> bool:
    if isinstance(value, list):
        return any(is_prose(each) for each in value)
    return isinstance(value, str) and bool(PROSE.search(value))


def described(value: Any) -> Any:
    """Return the stored form of a value."""
    if isinstance(value, bytes):
        return digest(value)
    if isinstance(value, list) and len(value) > 4:
        value = column(value)
    if not isinstance(value, np.ndarray):
        return value
    numbers = ""
    if value.dtype.kind in "biuf" and not np.isnan(value).all():
        numbers = f" mean {np.nanmean(value):.6g} std {np.nanstd(value):.6g}"
    return f"{value.dtype}{list(value.shape)}{numbers} {digest(value.tobytes())}"


def column(values: list[Any]) -> np.ndarray:
    """Convert numbers to an array with NaN for missing ones, other values to an array of JSON."""
    try:
        return np.array([np.nan if each in (None, "") else each for each in values], dtype=float)
    except (TypeError, ValueError):
        return np.array([json.dumps(each, sort_keys=True) for each in values])


def record(folder: Path, work: Path) -> Record:
    """Return the stored form of all files in a folder."""
    values: Record = {}
    texts: Record = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        name = CHECKSUM.sub("…", file.relative_to(folder).as_posix())
        content = decoded(file, work)
        if file.suffix in TEXTS:
            texts[name] = text_digest(content)
            if file.suffix != ".html":
                continue
            content = {tag: content.count(f"<{tag}") for tag in ("img", "svg", "tr")}
        for key, value in leaves(content):
            if is_prose(value):
                texts[f"{name} {key}"] = text_digest(json.dumps(value))
            else:
                values.setdefault(name, {})[key] = described(value)
    return {**values, "text": texts}


COLORS = {"red": (190, 60, 60), "green": (60, 180, 60), "blue": (60, 60, 190)}
COLORS |= {"yellow": (180, 180, 60), "cyan": (60, 170, 180), "purple": (150, 60, 170)}
NOVEL = {"orange": (210, 130, 50), "gray": (120, 120, 120)}


def draw(rng: np.random.Generator, color: Any, side: int) -> np.ndarray:
    """Return a noisy patch with a slightly shifted color, so that some are hard to tell apart."""
    pixels = np.array(color) + rng.normal(0, 18, 3) + rng.integers(-40, 41, size=(side, side, 3))
    return pixels.clip(0, 255).astype(np.uint8)


class Work:
    """A folder with a small collection, a tiny encoder, and a subfolder per finished case."""

    def __init__(self, folder: Path) -> None:
        folder = folder.resolve()
        self.folder = folder
        for name in ("photos", "new", "cifar"):
            (folder / name).mkdir(parents=True)
        self._write_photos()
        self._write_cifar()
        self._write_encoder()
        os.environ["SHOAL_CACHE"] = str(folder / "cache")
        encoder = f"--encoder {folder}/encoder --input-size 16"
        photos = f"{folder}/photos --labels {folder}/labels.csv {encoder}"
        self.places = {"work": folder, "encoder": encoder, "photos": photos}

    def _write_photos(self) -> None:
        """Write photos of eight colors; six are known, and half of their photos are labeled."""
        rng = np.random.default_rng(0)
        colors = COLORS | NOVEL
        rows = [(f"{i * 37 % 97:03d}.png", list(colors)[i % 8]) for i in range(96)]
        for name, color in rows:
            Image.fromarray(draw(rng, colors[color], 20)).save(self.folder / "photos" / name)
        for i, color in enumerate([*colors.values(), (255, 255, 255)]):
            Image.fromarray(draw(rng, color, 24)).save(self.folder / "new" / f"{i}.png")
        tables = {"truth": rows, "labels": [row for row in rows[:48] if row[1] in COLORS]}
        for name, table in tables.items():
            with (self.folder / f"{name}.csv").open("w", newline="") as out:
                csv.writer(out).writerows([("path", "label"), *table])

    def _write_cifar(self) -> None:
        """Write a synthetic CIFAR-100 in the binary format."""
        rng = np.random.default_rng(0)
        colors = rng.integers(0, 256, size=(100, 3))
        for part, n_each in (("train", 6), ("test", 1)):
            records = bytearray()
            for label in np.tile(np.arange(100), n_each):
                pixels = draw(rng, colors[label], 32)
                records += bytes([label // 5, label]) + pixels.transpose(2, 0, 1).tobytes()
            (self.folder / "cifar" / f"{part}.bin").write_bytes(records)

    def _write_encoder(self) -> None:
        """Write a ViT with random weights."""
        from transformers import ViTConfig, ViTModel, logging

        logging.disable_progress_bar()
        torch.manual_seed(0)
        small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = ViTConfig(image_size=16, patch_size=8, intermediate_size=32, **small)
        ViTModel(config).save_pretrained(self.folder / "encoder")
        sees = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 16}
        (self.folder / "encoder" / "preprocessor_config.json").write_text(json.dumps(sees))

    def __getitem__(self, name: str) -> Any:
        """Return the substitute for {name} in a command: a path, or the run folder of a case."""
        return self.places.get(name) or self.run(name) / "run"

    def run(self, case: str) -> Path:
        """Return the folder of a case; run the case first if necessary."""
        folder = self.folder / "cases" / case
        if folder.exists():
            return folder
        folder.mkdir(parents=True)
        with mock.patch.object(Figure, "draw", DRAW if case in DRAWN else mock.Mock()):
            if case in COMMANDS:
                self.shoal(folder, *COMMANDS[case])
            else:
                CALLS[case](self, folder)
        return folder

    def words(self, folder: Path, command: str) -> list[str]:
        """Return the arguments of a command for a case with this folder."""
        own = command.replace("{case}", str(folder))
        return [*shlex.split(own.format_map(self)), "--json"]

    def shoal(self, folder: Path, *commands: str) -> None:
        """Run commands as `python -m shoal` does, and write their output to files in the folder."""
        for i, command in enumerate(commands):
            stdout = io.StringIO()
            stderr = io.StringIO()
            code: Any = None
            with (
                mock.patch.object(sys, "argv", ["shoal", *self.words(folder, command)]),
                contextlib.redirect_stdout(stdout),
                contextlib.redirect_stderr(stderr),
            ):
                try:
                    runpy.run_module("shoal", run_name="__main__")
                except SystemExit as end:
                    code = end.code
            (folder / f"stderr-{i}.txt").write_text(stderr.getvalue())
            (folder / f"stdout-{i}.json").write_text(stdout.getvalue() or "null")
            (folder / f"exit-{i}.json").write_text(json.dumps(code or 0))


def resume(work: Work, folder: Path) -> None:
    """Kill a run after its first epoch and resume it: it equals an uninterrupted run."""
    whole = record(work["trained"], work.folder)
    command = f"discover {{photos}} {TINY} --epochs 2 --out {{case}}/run"
    run = [sys.executable, "-m", "shoal", *work.words(folder, command)]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(run, stdout=nowhere, stderr=nowhere)
    while process.poll() is None and not (folder / "run" / "metrics.jsonl").exists():
        time.sleep(0.002)
    process.kill()
    process.wait()
    work.shoal(folder, f"{command} --resume")
    resumed = record(folder / "run", work.folder)
    unequal = [name for name in whole if name != "text" and whole[name] != resumed.get(name)]
    (folder / "unequal.json").write_text(json.dumps(unequal))


def evaluate(work: Work, folder: Path) -> None:
    shutil.copytree(work["trained"], folder / "run")
    score = "evaluate {case}/run --truth {work}/truth.csv"
    work.shoal(folder, score, "report {case}/run --figures {case}/figures")


def review(work: Work, folder: Path) -> None:
    """Review a run, and run discovery again with the decisions."""
    run = shoal.load(shutil.copytree(work["frozen-k"], folder / "run"))
    names = [row.category for row in run.categories]
    members = [[row.path for row in run.assignments if row.category == name] for name in names]
    run.rename(names[-1], "teal")
    run.confirm("teal")
    run.confirm(images=members[0][:3])
    run.flag(members[1][:1])
    run.reject(members[2][:2])
    run.move(members[2][2:4], names[0])
    run.move(members[3][:1], "white")
    run.split(names[4])
    run.merge([names[1], names[-2]])
    run.undo()
    run.redo()
    run.undo()
    again = "discover --review {case}/run --out {case}/again"
    work.shoal(folder, again, f"{again}-trained --train {TINY} --epochs 2")


def estimators(work: Work, folder: Path) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(10), 40)
    x = rng.normal(size=(10, 32))[truth] + rng.normal(scale=1.1, size=(400, 32))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    y = np.where((truth < 6) & (np.arange(400) % 2 == 0), truth, shoal.UNLABELED)
    shifted = shoal.MeanShiftClustering()
    unlabeled = shoal.MeanShiftClustering(n_clusters=10)
    found = {
        "mean_shift": shifted.fit_predict(x, y),
        "mean_shift_predict": shifted.predict(x[::3] + 0.01),
        "mean_shift_k": shoal.MeanShiftClustering(n_clusters=10).fit_predict(x, y),
        "mean_shift_unlabeled": unlabeled.fit_predict(x),
        "mean_shift_heights": unlabeled.tree_.heights,
        "mean_shift_outliers": unlabeled.outlier_score_,
        "ward": shoal.WardClustering(n_clusters=10).fit_predict(x),
        "linkage": shoal.ward_linkage(x),
        "linkage_of_ties": shoal.ward_linkage(np.eye(7, dtype=np.float32)[truth[::7] % 7]),
    }
    accuracy = shoal.gcd_accuracy(truth, found["mean_shift"], truth < 6)
    found["accuracy"] = np.array([accuracy.all, accuracy.known, accuracy.novel])
    np.savez(folder / "found.npz", **found)


HEAD = "--set head.width=24 --set head.dim=12"
SMALL = "--epochs 1 --set training.batch_size=16"
TINY = f"{HEAD} --set training.batch_size=16 --set inference.shift.n_neighbors=4"

# What makes a method small besides its head
SMALLER = {
    "pim": "--set fit_steps=10",
    "promptcal": "--set memory_size=64 --set n_negatives=16",
    "uno": "--set width=24 --set dim=12",
}

FORMATS = ("imagefolder", "hf", "csv", "spreadsheet", "labelstudio", "fiftyone", "projector")
DISCOVER = "discover {photos} --out {case}/run"
COMMANDS: dict[str, list[str]] = {
    "frozen": [f"{DISCOVER} --no-train"],
    "frozen-k": [f"{DISCOVER} --no-train --n-clusters 8"],
    "trained": [f"{DISCOVER} {TINY} --epochs 2"],
    "trained-k": [f"{DISCOVER} {TINY} --epochs 2 --n-clusters 8 --set hidden_share=0 --seed 1"],
    "paper": [f"{DISCOVER} {TINY} --epochs 2 --protocol paper"],
    **{
        method: [
            f"{DISCOVER} --method {method} --n-clusters 8 {SMALL} {SMALLER.get(method, '')} "
            f"{HEAD if has_setting(method, 'head.width') else ''}"
        ]
        for method in METHODS
        if method not in ("cms", "agglomerative")  # cms is in the other cases
    },
    "agglomerative": [f"{DISCOVER} --method agglomerative --n-clusters 8"],
    "compare": [f"compare {{photos}} --methods cms,gcd {SMALL} {HEAD} --out {{case}}/run"],
    "assign": [
        "assign {trained} {work}/new --out {case}/trained.csv",
        "assign {frozen} {work}/new --out {case}/frozen.csv",
    ],
    "export": [f"export {{review}} --to {name} --out {{case}}/{name}" for name in FORMATS],
    "cluster": [
        "embed {photos} --out {case}/features.npz",
        "cluster {case}/features.npz --out {case}/run",
        "assign {case}/run {case}/features.npz",
    ],
    "reproduce": [
        "reproduce 1 --root cifar100={work}/cifar {encoder} --methods agglomerative,cms "
        f"--epochs 1 --set training.batch_size=64 {HEAD} --out {{case}}/out"
    ],
}
CALLS: dict[str, Callable[[Work, Path], None]] = {
    "resumed": resume,
    "evaluate": evaluate,
    "review": review,
    "estimators": estimators,
}
CASES = sorted([*COMMANDS, *CALLS])
DRAW = Figure.draw

# Cases whose pages have their figures; to draw them takes longer than all the rest
DRAWN = ("trained", "evaluate", "compare")


def run_cases(cases: list[str], folder: Path) -> dict[str, Record]:
    """Run cases in a new folder, and return the record of each."""
    os.environ |= {"SHOAL_ENGINE": "torch", "CUDA_VISIBLE_DEVICES": ""}
    torch.set_num_threads(2)
    work = Work(folder)
    return {case: record(work.run(case), work.folder) for case in cases}


def differences(before: Any, after: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the kind (changed, gone or new) and place of every difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            where = f"{place}  {key}".strip()
            if key not in after:
                yield "gone", where
            elif key not in before:
                yield "new", where
            else:
                yield from differences(before[key], after[key], where)
    elif before != after:
        yield "changed", f"{place}: {before} -> {after}"


def main(arguments: list[str] | None = None) -> int:
    """Run the cases, then write or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE", help="store what is found")
    what.add_argument("--compare", type=Path, metavar="FILE", help="compare with what was stored")
    parser.add_argument("--only", action="append", choices=CASES, help="one case; repeatable")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what is written, here")
    parser.add_argument("--ignore-text", action="store_true", help="leave sentences and pages out")
    parser.add_argument("--strict", action="store_true", help="fail for what is gone or new too")
    asked = parser.parse_args(arguments)
    cases = asked.only or CASES
    with tempfile.TemporaryDirectory() as folder:
        found = run_cases(cases, asked.keep or Path(folder))
    if asked.write:
        asked.write.write_text(json.dumps(found, indent=1))
        return 0
    stored = json.loads(asked.compare.read_text())
    before = {case: stored[case] for case in cases if case in stored}
    if asked.ignore_text:
        for each in (*before.values(), *found.values()):
            del each["text"]
    differing = list(differences(before, json.loads(json.dumps(found))))
    for kind, where in differing:
        print(f"{kind:<8}{where}")
    kinds = [kind for kind, _ in differing]
    n_changed = kinds.count("changed")
    print(f"{n_changed} changed, {kinds.count('gone')} gone, {kinds.count('new')} new")
    return int(n_changed > 0 or (asked.strict and bool(differing)))


if __name__ == "__main__":
    sys.exit(main())
