"""Real interruptions of real processes: Ctrl-C, kill, a full disk, a crashed decoder, two
writers at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.errors import ShoalError

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="looks at processes through /proc"
)

SIZE = 64
N_IMAGES = 160

# Seconds after which a process certainly hangs, however busy the machine is
HANGS_S = 300

# No `if __name__ == "__main__"` guard: a user's script need not have one.
SCRIPT = """
import signal, sys
# A shell has Ctrl-C ignored by what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.errors import ShoalError

def tell(done, total):
    print(done, total, flush=True)
    if done >= {hold_at}:
        sys.stdin.readline()  # held here until the test has done what it wants to do

try:
    images = read_collection(sys.argv[1])
    pixels = load_pixels(images, {size}, cache=sys.argv[2], n_workers=2, progress=tell)
    print("sum", int(pixels[:].astype("int64").sum()))
except ShoalError as error:
    print("error", error)
    sys.exit(error.exit_code)
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(N_IMAGES):
        noise = Image.fromarray(rng.integers(0, 256, (150, 200, 3), dtype=np.uint8))
        noise.save(root / f"{i:03d}.png", compress_level=0)  # noise compresses slowly, for no gain
    return read_collection(root)


@pytest.fixture(scope="module")
def expected(collection, tmp_path_factory):
    return load_pixels(collection, SIZE, cache=tmp_path_factory.mktemp("reference"))[:]


def start(collection, cache, before="", hold_at=N_IMAGES + 1):
    """Decode in another process, which pauses after `hold_at` images until it reads a line from
    stdin."""
    script = cache.parent / f"{cache.name}-script.py"
    script.write_text(SCRIPT.format(before=before, size=SIZE, hold_at=hold_at))
    command = [sys.executable, str(script), str(collection.root), str(cache)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=env, start_new_session=True)


def wait_until_held(process, hold_at):
    """Wait until the process pauses; return how many images it has decoded."""
    done = next(
        done for done in (int(line.split()[0]) for line in process.stdout) if done >= hold_at
    )
    assert done < N_IMAGES
    return done


def workers_of(session):
    """Return the worker processes that were started in a session, whatever their parent is now."""
    workers = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            state, _, _, its_session = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if "multiprocessing.spawn" in command and state != "Z" and int(its_session) == session:
            workers.append(int(entry.name))
    return workers


def assert_no_workers(process):
    until = time.monotonic() + HANGS_S
    while workers_of(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert workers_of(process.pid) == []


def assert_next_run_is_right(collection, cache, expected):
    """Load again and compare; return how many images did not need decoding."""
    seen: list[int] = []
    pixels = load_pixels(
        collection, SIZE, cache=cache, progress=lambda done, total: seen.append(done)
    )
    np.testing.assert_array_equal(pixels[:], expected)
    return seen[0]


def test_ctrl_c_stops_at_once_and_keeps_what_is_done(collection, expected, tmp_path):
    process = start(collection, tmp_path, hold_at=48)
    n_done = wait_until_held(process, 48)
    os.killpg(process.pid, signal.SIGINT)  # like a terminal, which also signals the workers
    _, errors = process.communicate(timeout=HANGS_S)
    assert process.returncode in (-signal.SIGINT, 130)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert_no_workers(process)
    assert assert_next_run_is_right(collection, tmp_path, expected) == n_done


def test_a_worker_that_is_still_starting_does_not_see_ctrl_c(
    collection, expected, tmp_path, monkeypatch
):
    hold = tmp_path / "hold"
    hold.touch()
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        f"while '--multiprocessing-fork' in sys.orig_argv and os.path.exists({str(hold)!r}):\n"
        "    time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    process = start(collection, tmp_path / "cache")
    while not workers_of(process.pid):
        time.sleep(0.02)
    for worker in workers_of(process.pid):
        os.kill(worker, signal.SIGINT)
    hold.unlink()
    output, errors = process.communicate(timeout=HANGS_S)
    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == f"sum {int(expected.astype(np.int64).sum())}"


def test_a_killed_run_leaves_no_workers_and_no_half_cache(collection, expected, tmp_path):
    process = start(collection, tmp_path, hold_at=48)
    wait_until_held(process, 48)
    assert workers_of(process.pid)
    process.kill()
    process.communicate(timeout=HANGS_S)
    assert_no_workers(process)
    assert_next_run_is_right(collection, tmp_path, expected)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_full_disk_ends_the_run_and_the_cache_stays_true(collection, expected, tmp_path, share):
    """A limit on the size of files: beyond it, writes of the workers fail as on a full disk."""
    limit = int(share * N_IMAGES * SIZE * SIZE * 3) + 1000
    limiting = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    process = start(collection, tmp_path, before=limiting)
    output, errors = process.communicate(timeout=HANGS_S)
    assert (process.returncode, errors) == (1, "")
    assert str(tmp_path) in output
    assert_no_workers(process)
    assert not list(tmp_path.rglob("*.tmp"))
    n_kept = assert_next_run_is_right(collection, tmp_path, expected)
    assert n_kept > 0 if share else n_kept == 0


def test_a_killed_worker_costs_nothing(collection, expected, tmp_path):
    process = start(collection, tmp_path, hold_at=48)
    wait_until_held(process, 48)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    output, errors = process.communicate("\n" * N_IMAGES, timeout=HANGS_S)
    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == f"sum {int(expected.astype(np.int64).sum())}"


def test_images_that_crash_the_decoder_are_skipped(collection, expected, tmp_path, monkeypatch):
    """The workers import a patched Pillow, which kills its process at two of the images."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, PIL.Image\n"
        "whole = PIL.Image.open\n"
        "def crashing(file, *args, **kwargs):\n"
        "    if str(file).endswith(('007.png', '031.png')):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return whole(file, *args, **kwargs)\n"
        "PIL.Image.open = crashing\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    some = collection.subset(range(40))
    pixels = load_pixels(some, SIZE, cache=tmp_path / "cache", n_workers=2)
    assert list(pixels.skipped) == ["007.png", "031.png"]
    np.testing.assert_array_equal(pixels[:], np.delete(expected[:40], [7, 31], axis=0))


def test_a_worker_that_cannot_start_is_an_error(collection, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with pytest.raises(ShoalError):
        load_pixels(collection, SIZE, cache=tmp_path / "cache")


def test_two_writers_at_once_both_get_the_right_pixels(collection, expected, tmp_path):
    processes = [start(collection, tmp_path) for _ in range(2)]
    total = int(expected.astype(np.int64).sum())
    outputs = [process.communicate(timeout=HANGS_S) for process in processes]
    for process, (output, errors) in zip(processes, outputs, strict=True):
        assert (process.returncode, errors) == (0, "")
        assert output.splitlines()[-1] == f"sum {total}"
    decoded = [int(output.split()[0]) < N_IMAGES for output, _ in outputs]
    assert sum(decoded) == 1, "one decodes, the other waits and finds the work done"
    (index,) = tmp_path.rglob("index.json")
    assert len(json.loads(index.read_text())["names"]) == N_IMAGES


def test_a_worker_starts_without_numpy_and_torch():
    """Decoding most images needs neither, and importing them would delay every worker."""
    heavy = "{'numpy', 'torch'} & sys.modules.keys()"
    code = f"import sys, shoal.data.pixels.workers; sys.exit(bool({heavy}))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0


@pytest.mark.slow
def test_a_huge_image_neither_crashes_nor_eats_memory(tmp_path):
    """20,000 x 20,000: a PNG is skipped by its header, a JPEG is decoded at an eighth of its
    scale."""
    Image.new("L", (20_000, 20_000), 200).save(tmp_path / "huge.jpg", quality=50)
    Image.new("1", (20_000, 20_000)).save(tmp_path / "huge.png")
    measuring = (
        "import atexit, resource; atexit.register(lambda: print(resource.getrusage(-1).ru_maxrss))"
    )
    process = start(read_collection(tmp_path), tmp_path / "cache", before=measuring)
    output, errors = process.communicate(timeout=HANGS_S)
    assert (process.returncode, errors) == (0, "")
    peak_kb = int(output.split()[-1])
    assert peak_kb < 200_000, "of the largest worker"
    pixels = load_pixels(read_collection(tmp_path), SIZE, cache=tmp_path / "cache", n_workers=1)
    assert pixels.names == ("huge.jpg",)
    assert list(pixels.skipped) == ["huge.png"]
    np.testing.assert_array_equal(pixels[0], np.full((SIZE, SIZE, 3), 200))
