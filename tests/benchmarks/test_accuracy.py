"""The script behind the recorded accuracies: what it runs, with which budget, and what it writes down."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"


@pytest.fixture(scope="module")
def accuracy(load_script):
    return load_script("accuracy")


@pytest.fixture
def arguments(accuracy, monkeypatch):
    """What the script makes of a command line."""

    def parse(*words):
        monkeypatch.setattr(
            sys, "argv", ["accuracy.py", "--methods", "agglomerative", "gcd", "cms", *words]
        )
        return accuracy._arguments()

    return parse


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_gcd_and_cms_have_the_same_budget(accuracy, arguments, protocol):
    cells = accuracy._wanted(arguments("--protocol", protocol))
    for dataset, epochs, pool in (("cub", 25, 16), ("cifar100", 8, 8)):
        trained = [c for c in cells if c.dataset == dataset and c.method != "agglomerative"]
        assert {cell.method for cell in trained} == {"cms", "gcd"}
        budgets = {
            (c.settings.training.epochs, c.settings.training.views.pool, c.settings.input_size)
            for c in trained
        }
        assert budgets == {(epochs, pool if protocol == "paper" else None, 224)}


def test_cifar_100_is_four_things_to_learn_for_tables_1_3_and_4(accuracy, arguments):
    cells = accuracy._wanted(
        arguments("--datasets", "cifar100", "--seeds", "0", "--tables", "1", "3", "4")
    )
    learned = [(group[0].method, group[0].selection) for group in accuracy.groups_of(cells)]
    assert learned == [
        ("agglomerative", "estimated"),
        ("gcd", "estimated"),
        ("cms", "estimated"),
        ("cms", "given"),
    ]


@pytest.mark.parametrize(("dataset", "n_seeds"), [("cub", 2), ("cifar100", 1)])
def test_table_8_is_run_with_and_without_labels(accuracy, arguments, dataset, n_seeds):
    cells = accuracy._wanted(arguments("--datasets", dataset, "--seeds", "0", "1", "--tables", "8"))
    assert [cell.setup for cell in cells] == n_seeds * ["unsupervised", "transductive"]
    main = accuracy._wanted(arguments("--datasets", dataset, "--seeds", "0", "1", "--tables", "1"))
    assert {cell.key for cell in cells if cell.setup == "transductive"} <= {
        cell.key for cell in main
    }


def test_tables_can_be_chosen(accuracy, arguments):
    cells = accuracy._wanted(arguments("--datasets", "cub", "--tables", "1", "--seeds", "0"))
    assert {(cell.method, cell.clustering) for cell in cells} == {
        *((m, m) for m in ("agglomerative", "gcd", "cms")),
        ("agglomerative", "cms"),
    }
    assert accuracy._shown("cub", arguments("--tables", "1", "14")) == ["1", "14"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.speed=1"], "unknown setting 'speed'"),
        (["training.lr=[1"], "--set training.lr: found '[1', expected a number"),
        (["n_tail_blocks"], "--set: found 'n_tail_blocks', expected NAME=VALUE"),
        (
            ["n_init=2", "--tables", "12"],
            "--set n_init: no row of what is run (12) has this setting",
        ),
        (["training.epochs=1", "--tables", "99"], "no table or figure '99'"),
    ],
)
def test_a_wrong_setting_is_one_line_and_nothing_is_written(
    accuracy, tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", "--out", str(tmp_path / "out"), "--set", *words]
    )
    with pytest.raises(SystemExit) as ended:
        accuracy.main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("accuracy.py: error: ")
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_setting_at_the_top_changes_the_rows_that_have_it(accuracy, arguments):
    cells = accuracy._wanted(arguments("--set", "n_tail_blocks=5", "n_init=2"))
    assert {cell.settings.n_tail_blocks for cell in cells if cell.method != "agglomerative"} == {5}
    assert {cell.settings.n_init for cell in cells if cell.method == "gcd"} == {2}


def test_a_training_is_taken_by_one_worker(accuracy, arguments, tmp_path):
    first, second, *_ = accuracy.groups_of(accuracy._wanted(arguments()))
    assert accuracy._claim(first, tmp_path)
    assert not accuracy._claim(first, tmp_path)
    assert accuracy._claim(second, tmp_path)


def test_the_minutes_of_a_worker_began_with_the_call(accuracy, arguments, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(accuracy.subprocess, "Popen", lambda command, env: started.append(command))
    monkeypatch.setattr(accuracy.time, "monotonic", lambda: 1100.0)
    accuracy._start(2, arguments("--minutes", "8"), 1000.0, {})
    words = started[0]
    assert float(words[words.index("--elapsed") + 1]) == 100


def test_a_call_that_was_killed_stays_in_the_record(accuracy, arguments, tmp_path):
    chosen = arguments("--out", str(tmp_path / "out"), "--commit", "c0ffee", "--seeds", "0", "1")
    accuracy._note_begin(chosen, accuracy.torch.device("cpu"))
    accuracy._note_begin(chosen, accuracy.torch.device("cpu"))
    accuracy._note_end(chosen, 5.26)
    first, second = accuracy._summary([], chosen).splitlines()[:2]
    assert first.endswith("not finished")
    assert second.endswith("5.3 minutes")
    for part in (
        "commit c0ffee",
        "`python accuracy.py --methods",
        "seeds 0, 1",
        "CPU",
        "processors",
        "protocol 'paper'",
    ):
        assert part in first
        assert part in second


def test_a_rehearsal_takes_the_first_images_of_each_class(accuracy, arguments, tmp_path):
    with zipfile.ZipFile(tmp_path / "cifar100-train.zip", "w") as archive:
        for name in ("apple/b.webp", "apple/a.webp", "apple/c.webp", "bear/a.webp"):
            archive.writestr(f"train/{name}", name)
    chosen = arguments("--data", str(tmp_path), "--per-class", "2", "--out", str(tmp_path / "out"))
    accuracy.take_few(chosen)
    with zipfile.ZipFile(chosen.data / "cifar100-train.zip") as few:
        assert few.namelist() == ["train/apple/b.webp", "train/apple/a.webp", "train/bear/a.webp"]


@pytest.mark.slow
def test_a_rehearsal_leaves_a_record_and_the_next_call_goes_on_from_it(tmp_path):
    """The first call runs Table 1, the second adds what Table 4 needs from the same trainings, the third nothing."""
    told = []
    for tables in (["1"], ["1", "4"], ["1", "4"]):
        command = [
            sys.executable,
            str(SCRIPT),
            "--rehearse",
            "--datasets",
            "cub",
            "--seeds",
            "0",
            "--workers",
            "2",
        ]
        command += ["--methods", "agglomerative", "gcd", "cms"]
        command += [
            "--tables",
            *tables,
            "--out",
            str(tmp_path / "out"),
            "--commit",
            "c0ffee",
            "--shared",
            str(tmp_path),
        ]
        found = subprocess.run(
            command, capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        told.append(found.stderr)
    assert "cub: 3 trainings to do" in told[0]
    assert "cub: 2 trainings to do" in told[1]
    assert "cub: 0 trainings to do" in told[2]
    assert "training" not in told[2].replace("0 trainings to do", "")
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert summary == found.stdout.removesuffix("\n")
    calls = [
        line for line in summary.splitlines() if line.startswith("- ") and "commit c0ffee" in line
    ]
    assert len(calls) == 3
    for part in (
        "--rehearse --datasets cub",
        "seeds 0",
        "CPU",
        "processors",
        "minutes",
        "protocol 'paper'",
    ):
        assert all(part in line for line in calls)
    assert "a rehearsal, no result" in summary
    assert len(list((tmp_path / "out" / "cub" / "cells").glob("*.json"))) == 11
    assert [path.name for path in tmp_path.iterdir()] == ["out"], (
        "nothing is left where workers share files"
    )
