"""Commands in two processes, started as by torchrun, give the same result as in one process, and
only the main process prints."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import shoal
from conftest import write_table
from several_processes import end_first, finish_processes, start_nodes, start_processes
from shoal.data.readers import read_embeddings
from shoal.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SHOAL = """
import sys
from shoal.cli.main import main
sys.argv[1:] = {words!r}
main()
"""


def alone(*words: object) -> str:
    """Run a command in this process."""
    found = shoal(*words)
    assert found.exit_code == 0, found.stderr
    return found.stdout


def in_processes(*words: object) -> str:
    first, second = finish_processes(start_processes(SHOAL.format(words=[*map(str, words)])))
    assert second == ""
    return first


@pytest.fixture(params=["processes", "nodes"])
def in_two(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., str]:
    """Run a command in two processes on one machine, or on two nodes with one process each."""

    def in_nodes(*words: object) -> str:
        output = finish_processes(start_nodes(SHOAL.format(words=[*map(str, words)]), tmp_path))
        assert output.count("") == 1
        return max(output)

    return in_processes if request.param == "processes" else in_nodes


@pytest.fixture
def features(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 300)
    file = tmp_path / "features.npz"
    rows = rng.normal(size=(300, 16)) + 2 * rng.normal(size=(6, 16))[truth]
    np.savez(
        file,
        X=rows.astype(np.float32),
        y=np.where((truth < 3) & (rng.random(300) < 0.5), truth, -1),
    )
    return file


def test_embed_gives_the_same_rows_up_to_rounding(in_two, photos, tmp_path: Path) -> None:
    files = [tmp_path / "one.npz", tmp_path / "two.npz"]
    for run, file in zip((alone, in_two), files, strict=True):
        assert (
            run("embed", photos.folder, "--out", file, "--device", "cpu", "--input-size", 64)
            == f"{file}\n"
        )
    one, two = (read_embeddings(file) for file in files)
    assert one.names == two.names
    np.testing.assert_allclose(one.x, two.x, atol=1e-5)


def test_discover_and_assign_in_two_processes(in_two, photos, tmp_path: Path) -> None:
    given = [
        photos.folder,
        "--labels",
        photos.labels,
        "--config",
        photos.config,
        "--n-clusters",
        5,
        "--device",
        "cpu",
    ]
    alone("discover", *given, "--out", tmp_path / "one")
    in_two("discover", *given, "--out", tmp_path / "two")
    found = [
        [(row.path, row.category) for row in Run.open(tmp_path / name).assignments]
        for name in ("one", "two")
    ]
    assert found[0] == found[1]
    words = ["assign", tmp_path / "one", photos.folder, "--device", "cpu", "--json"]
    one, two = (json.loads(run(*words))["assignments"] for run in (alone, in_two))
    assert [(row["path"], row["category"]) for row in one] == [
        (row["path"], row["category"]) for row in two
    ]
    in_two(
        "assign", tmp_path / "one", photos.folder, "--device", "cpu", "--out", tmp_path / "new.csv"
    )
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 1 + len(one)


def half_labeled(make_photos, folder: Path) -> tuple[Any, Path]:
    """Return photos with half of them labeled, which is enough for `compare`."""
    photos = make_photos(120)
    return photos, write_table(folder / "half.csv", dict(sorted(photos.truth.items())[::2]))


def comparison_of(make_photos, folder: Path) -> list[object]:
    """Return the arguments of a small comparison of two methods."""
    photos, labels = half_labeled(make_photos, folder)
    changes = [
        "training.epochs=2",
        "training.batch_size=16",
        "head.width=32",
        "head.dim=12",
        "head.bottleneck=8",
    ]
    small = [word for change in changes for word in ("--set", change)]
    given = [
        photos.folder,
        "--labels",
        labels,
        "--config",
        photos.config,
        "--methods",
        "cms,gcd",
        "--device",
        "cpu",
    ]
    return ["compare", *given, *small, "--n-clusters", 5, "--json"]


def ranks(output: str) -> list[tuple[Any, ...]]:
    return [(row["method"], row["rank"], row["accuracy"]) for row in json.loads(output)["rows"]]


def test_compare_ranks_the_same_methods_by_the_same_numbers(
    in_two, make_photos, tmp_path: Path
) -> None:
    words = comparison_of(make_photos, tmp_path)
    assert ranks(alone(*words, "--out", tmp_path / "one")) == ranks(
        in_two(*words, "--out", tmp_path / "two")
    )


def test_a_killed_comparison_resumes_in_one_process(make_photos, tmp_path: Path) -> None:
    words = comparison_of(make_photos, tmp_path)
    code = DYING.format(rank="1") + SHOAL.format(
        words=[*map(str, words), "--out", str(tmp_path / "run")]
    )
    status, output = end_first(start_processes(code))
    assert status == 1
    assert "error: process 0 of 2 ends because another process has ended" in output.splitlines()[-1]
    assert not Run(tmp_path / "run").is_finished
    resumed = ranks(alone(*words, "--out", tmp_path / "run", "--resume"))
    assert resumed == ranks(alone(*words, "--out", tmp_path / "whole"))


DYING = """
import os, signal
from shoal.training.loop import Checkpointer
write = Checkpointer.write

def die(self, *rest, **how):
    write(self, *rest, **how)
    if len(self.metrics) == 2 and os.environ["RANK"] == {rank!r}:
        os.kill(os.getpid(), signal.SIGKILL)

Checkpointer.write = die
"""


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_killed_run_resumes_with_another_number_of_processes(
    photos, tmp_path: Path, before: int, after: int
) -> None:
    """The last process is killed after its second epoch; the main process reports it and exits."""
    given = [
        photos.folder,
        "--labels",
        photos.labels,
        "--config",
        photos.config,
        "--n-clusters",
        5,
        "--device",
        "cpu",
    ]
    words = ["discover", *given, "--epochs", 4, "--out", tmp_path / "run"]
    code = DYING.format(rank=str(before - 1)) + SHOAL.format(words=[*map(str, words)])
    status, output = end_first(start_processes(code, before))
    if before == 2:
        assert status == 1
        assert (
            "error: process 0 of 2 ends because another process has ended"
            in output.splitlines()[-1]
        )
    else:
        assert status == -9
    assert not Run(tmp_path / "run").is_finished
    (alone if after == 1 else in_processes)(*words, "--resume")
    alone("discover", *given, "--epochs", 4, "--out", tmp_path / "whole")
    found = [
        [(row.path, row.category) for row in Run.open(tmp_path / name).assignments]
        for name in ("run", "whole")
    ]
    assert found[0] == found[1]


DEAD = """
import os, signal
from shoal.distributed import Heartbeat
enter = Heartbeat.__enter__

def die(self):
    enter(self)
    if self.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return self

Heartbeat.__enter__ = die
"""


@pytest.mark.parametrize("command", ["embed", "assign", "compare"])
def test_a_dead_process_ends_every_command_with_a_message(
    command: str, make_photos, discovered_photos, tmp_path: Path
) -> None:
    """The process dies after all processes have joined the group; `discover` is tested above."""
    photos, labels = half_labeled(make_photos, tmp_path)
    out = ["--out", tmp_path / "out.npz", "--device", "cpu"]
    words = {
        "embed": ["embed", photos.folder, "--input-size", 64, *out],
        "assign": ["assign", discovered_photos[1](False), photos.folder, *out],
        "compare": ["compare", photos.folder, "--labels", labels, "--config", photos.config, *out],
    }[command]
    code, output = end_first(start_processes(DEAD + SHOAL.format(words=[*map(str, words)])))
    assert code == 1
    assert "error: process 0 of 2 ends because another process has ended" in output.splitlines()[-1]


def test_other_commands_run_in_the_main_process_only(features: Path, tmp_path: Path) -> None:
    alone("cluster", features, "--out", tmp_path / "run", "--device", "cpu")
    output = in_processes("export", tmp_path / "run", "--to", "csv", "--out", tmp_path / "out.csv")
    assert output.count("out.csv") == 1
