"""Images in a Google Cloud Storage bucket and in a dataset of the Hugging Face Hub, with the
command line.

The bucket is in a real emulator and the hub is a stand-in, each in a separate process.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from several_processes import PATH
from shoal.cli.main import app
from shoal.runs import Run
from stores import google_store, hub_store

pytestmark = pytest.mark.slow


def shoal(*words, env):
    """Run a command in another process, with the address of the store in its environment."""
    # As many threads as here, because sums depend on the number of threads.
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    whole = os.environ | {"SHOAL_TRY_WAIT_S": "0.01", "SHOAL_TRIES": "2"} | threads | env
    whole["PYTHONPATH"] = os.pathsep.join([PATH, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=whole, timeout=600, check=False
    )


def in_folder(*words):
    found = CliRunner().invoke(app, [*map(str, words)])
    assert found.exit_code == 0, found.stderr


@pytest.mark.parametrize("store", [google_store, hub_store])
def test_discover_finds_in_a_store_what_it_finds_in_the_folder(store, unchanged_photos, tmp_path):
    photos = unchanged_photos
    given = [
        "--labels",
        photos.labels,
        "--config",
        photos.config,
        "--no-train",
        "--n-clusters",
        5,
        "--device",
        "cpu",
    ]
    with store(photos.folder) as (address, env):
        found = shoal("discover", address, *given, "--out", tmp_path / "there", env=env)
        assert found.returncode == 0, found.stderr
        wrong = shoal("discover", f"{address}-not", "--dry-run", env=env)
    assert (wrong.returncode, wrong.stdout) == (3, "")
    assert wrong.stderr.strip().startswith(f"error: {address}-not: cannot be read or found")
    in_folder("discover", photos.folder, *given, "--out", tmp_path / "here")
    there, here = (Run.open(tmp_path / name) for name in ("there", "here"))
    assert [(row.path, row.category) for row in there.assignments] == [
        (row.path, row.category) for row in here.assignments
    ]
    np.testing.assert_array_equal(there.array("embeddings"), here.array("embeddings"))
