"""Mutated files for `fuzz.py`: valid files of every kind that Shoal reads, and their readers."""

import io
import random
import signal
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from shoal.data.pixels.decoding import Unreadable, decode_file
from shoal.data.readers import read_collection, read_embeddings
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.errors import ShoalError
from shoal.runs import Run
from shoal.settings import dump_settings, load_settings

N_IMAGES = 48
N_KNOWN = 6
TIMEOUT_S = 60
TOKENS = (
    b"\0",
    b'"',
    b",",
    b"\n",
    b"\t",
    b"{",
    b"}",
    b"[",
    b"-1",
    b"nan",
    b"1e999",
    b"!!python/object:os.system",
    b"\xff\xfe",
)

# Kind of input -> valid files, and the function that reads one
Readers = dict[str, tuple[list[Path], Callable[[Path], object]]]


class Hang(Exception):
    """Reading an input took too long."""


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return content with one to four random changes: bytes replaced, truncated, deleted,
    repeated, inserted or set to zero."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        n = rng.choice((1, 2, 8, 64))
        change = rng.randrange(6)
        if change == 0 and found:
            for _ in range(n):
                found[rng.randrange(len(found))] = rng.randrange(256)
        elif change == 1:
            del found[at:]
        elif change == 2:
            del found[at : at + n]
        elif change == 3:
            found[at:at] = found[at : at + n]
        elif change == 4:
            found[at:at] = rng.choice(TOKENS)
        else:
            found[at : at + n] = bytes(len(found[at : at + n]))
    return bytes(found)


class Files:
    """Valid files of every kind in a folder; a mutated copy replaces a file for one test."""

    def __init__(self, place: Path, settings: DiscoverySettings) -> None:
        self.place = place
        self.settings = settings
        self.images = place / "images"
        self.table = place / "labels.csv"
        self.images.mkdir(parents=True)
        digits = load_digits()
        numbers = digits.target[:N_IMAGES].tolist()
        for i in range(N_IMAGES):
            pixels = (digits.images[i] * 15).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").save(self.images / f"{i:02d}.png")
        labels = [(f"{i:02d}.png", str(n)) for i, n in enumerate(numbers) if n < N_KNOWN and i % 4]
        rows = "".join(f"{name},{label}\n" for name, label in labels)
        self.table.write_text(f"path,label\n{rows}")
        (place / "labels.tsv").write_text(f"path\tlabel\n{rows}".replace(",", "\t"))
        (place / "labels.jsonl").write_text(
            "".join(f'{{"path": "{n}", "label": "{c}"}}\n' for n, c in labels)
        )
        (place / "config.yaml").write_text(dump_settings(settings))
        x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
        np.save(place / "x.npy", x)
        np.savez(
            place / "x.npz",
            X=x,
            paths=np.array([f"{i}.png" for i in range(12)]),
            y=np.arange(12) % 3,
        )
        picture = Image.open(self.images / "00.png").resize((40, 30))
        for kind in ("jpg", "png", "webp", "gif", "bmp", "tif"):
            picture.save(place / f"picture.{kind}")

    def readers(self, run: Path) -> Readers:
        """Return the function that reads each kind of input; `run` is a finished run folder."""
        at = self.place
        parts = [
            file
            for file in run.iterdir()
            if file.suffix in (".json", ".csv", ".yaml", ".jsonl", ".npy")
        ]
        return {
            "images": (sorted(at.glob("picture.*")), lambda file: decode_file(str(file), 32)),
            "tables": (
                sorted(at.glob("labels.*")),
                lambda file: read_collection(self.images, file),
            ),
            "configs": ([at / "config.yaml"], lambda file: load_settings(DiscoverySettings, file)),
            "embeddings": ([at / "x.npy", at / "x.npz"], read_embeddings),
            "run folders": (sorted(parts), lambda file: read_run(file.parent)),
        }


def read_run(folder: Path) -> None:
    """Read the tables, arrays and records of a run."""
    run = Run.open(folder)
    for name in ("assignments", "categories", "n_clusters", "metrics", "config", "provenance"):
        getattr(run, name)
    for name in ("embeddings", "shifted", "tree"):
        np.asarray(run.array(name))
    run.json("estimate")


def try_input(
    source: Path, read: Callable[[Path], object], rng: random.Random, failures: list[str]
) -> str:
    """Read a file with mutated content; return 'accepted', 'refused' or 'traceback'."""
    valid = source.read_bytes()
    mutated = mutate(valid, rng)
    source.write_bytes(mutated)
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(TIMEOUT_S)
    try:
        with redirect_stderr(io.StringIO()):
            read(source)
        return "accepted"
    except (ShoalError, Unreadable):
        return "refused"
    except BaseException as error:
        failures.append(
            f"{source.name}: {''.join(traceback.format_exception(error)[-3:])}\n{mutated[:300]!r}"
        )
        return "traceback"
    finally:
        signal.alarm(0)
        source.write_bytes(valid)


def _hang(number: int, frame: object) -> None:
    raise Hang
