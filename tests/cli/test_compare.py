"""`shoal compare`: what it prints where, what it says to each mistake, and what kill -9 does to it."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from held_runs import start_held
from shoal.cli.main import app
from shoal.discovery.comparison.compare import command_of, compare
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = (
    "training.batch_size=16",
    "training.epochs=2",
    "training.views.pool=4",
    "inference.shift.n_neighbors=4",
)


def run_compare(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments), "--device", "cpu"])


def refused(run: Result, code: int, *words: str) -> None:
    assert run.exit_code == code, run.stderr
    assert run.stdout == ""
    last = run.stderr.splitlines()[-1]
    assert last.startswith("error: "), run.stderr
    assert "Traceback" not in run.stderr
    for word in words:
        assert word in last


@pytest.fixture
def given(make_photos, tmp_path: Path) -> list[object]:
    """120 photos of five known colors, half of them labeled; small trainings of two methods."""
    photos = make_photos(120)
    labels = tmp_path / "half.csv"
    with labels.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("path", "label"), *sorted(photos.truth.items())[::2]])
    small = [word for change in SMALL for word in ("--set", change)]
    where = ["--config", photos.config, "--methods", "cms,gcd", "--out", tmp_path / "run"]
    return [photos.folder, "--labels", labels, *where, *small]


@pytest.mark.slow
def test_it_prints_a_table_ties_and_a_command_that_works_and_resume_prints_it_again(
    given, tmp_path: Path
) -> None:
    run = run_compare(*given)
    assert run.exit_code == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].split() == ["rank", "method", "All", "95", "%", "Known", "Novel", "seconds"]
    assert {line.split()[1] for line in lines[1:4]} == {"the", "CMS", "GCD"}
    assert lines[-1] == str(tmp_path / "run" / "compare.html")
    assert lines[-3] == "to run the first on everything:"
    said = run.stderr.splitlines()
    cost = next(at for at, line in enumerate(said) if line.startswith("2 trainings take"))
    assert any("labels kept from every method" in line for line in said[:cost])
    again = run_compare(*given, "--resume")
    assert (again.exit_code, again.stdout) == (0, run.stdout)
    found = json.loads(run_compare(*given, "--resume", "--json").stdout)
    assert found == json.loads((tmp_path / "run" / "comparison.json").read_text(encoding="utf-8"))
    words = shlex.split(found["command"])
    assert words[:2] == ["shoal", "discover"]
    done = CliRunner().invoke(
        app, [*words[1:], "--no-train", "--out", str(tmp_path / "winner"), "--dry-run"]
    )
    assert done.exit_code == 0, done.stderr


def test_where_every_image_is_labeled_no_command_is_printed_that_would_be_refused(
    make_photos, tmp_path: Path
) -> None:
    photos = make_photos(60)
    labels = tmp_path / "all.csv"
    with labels.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("path", "label"), *sorted(photos.truth.items())])
    everything = [
        photos.folder,
        "--labels",
        labels,
        "--config",
        photos.config,
        "--out",
        tmp_path / "run",
    ]
    small = [word for change in SMALL for word in ("--set", change)]
    run = run_compare(*everything, "--methods", "cms,agglomerative", *small)
    assert run.exit_code == 0, run.stderr
    why = (
        "There is no command for the first: every image is labeled, so nothing is left to discover."
    )
    assert why in run.stdout.splitlines()
    assert "shoal discover" not in run.stdout
    found = json.loads((tmp_path / "run" / "comparison.json").read_text(encoding="utf-8"))
    assert found["command"] is None
    page = (tmp_path / "run" / "compare.html").read_text(encoding="utf-8")
    assert why in page
    assert "shoal discover" not in page


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(given, tmp_path: Path) -> None:
    run = run_compare(*given, "--dry-run", "--json")
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["methods"] == ["frozen", "cms", "gcd"]
    assert (found["n_trainings"], found["epochs"]) == (2, {"cms": 2, "gcd": 2})
    assert "kept from every method" in found["kept"][0]
    assert not (tmp_path / "run").exists()
    assert (
        run_compare(*given, "--dry-run").stdout.splitlines()[1]
        == "frozen, cms and gcd: 2 trainings"
    )


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (
            ["--methods", "cms"],
            2,
            ["found only cms, expected two or more", "shoal discover --method"],
        ),
        (["--methods", "cms,cms"], 2, ["found cms 2 times"]),
        (["--methods", "cms,nonsense"], 2, ["no method 'nonsense'"]),
        (["--draws", "0"], 2, ["draws: found 0"]),
        (["--set", "depths=[1]"], 2, ["--set"]),
        (["--n-clusters", "2"], 2, ["without the labels that are kept", "n_clusters"]),
        (["--resume", "--force"], 2, ["resume and force"]),
        (["--set", "n_tail_blocks=99"], 2, ["99"]),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    given, tmp_path: Path, flags, code, words
) -> None:
    refused(run_compare(*given, *flags), code, *words)
    refused(run_compare(*given, *flags, "--dry-run"), code, *words)
    assert not (tmp_path / "run").exists()


def test_too_few_labels_are_refused(given, tmp_path: Path) -> None:
    labels = Path(str(given[2]))
    labels.write_text(
        "\n".join(labels.read_text(encoding="utf-8").splitlines()[:9]), encoding="utf-8"
    )
    refused(
        run_compare(*given),
        3,
        "could be kept to judge by, and a comparison needs 10; label more images",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_killed_in_the_second_method_and_resumed_equals_uninterrupted(
    given, tmp_path: Path
) -> None:
    """Only gcd has a 16th step. A finished method stays as it is; a second process was refused meanwhile."""
    longer = [*given, "--set", "gcd.training.epochs=3"]
    whole = run_compare(*longer, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr
    writer = start_held("training", 16, "compare", *longer, "--device", "cpu")
    refused(run_compare(*longer, "--resume"), 2, f"is being written by process {writer.pid} on ")
    writer.kill()
    writer.communicate()
    cut = tmp_path / "run"
    assert [path.name for path in sorted((cut / "methods").iterdir())] == ["cms", "frozen"]
    before = (cut / "methods" / "cms" / "provenance.json").read_bytes()
    again = run_compare(*longer, "--resume")
    assert again.exit_code == 0, again.stderr
    assert (cut / "methods" / "cms" / "provenance.json").read_bytes() == before
    parts = {file.relative_to(cut) for file in cut.rglob("*")}
    assert parts == {
        file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*")
    }
    for part in parts:
        if part.name in (
            "assignments.csv",
            "categories.csv",
            "kept.csv",
            "embeddings.npy",
            "model.safetensors",
        ):
            assert (cut / part).read_bytes() == (tmp_path / "whole" / part).read_bytes(), part
    assert len(Run(cut / "methods" / "gcd").metrics) == 3


NOTHING = dict.fromkeys(
    ("source", "labels", "labeled", "unlabeled", "path_column", "label_column", "allow_missing")
)


@pytest.mark.parametrize(
    ("method", "given", "settings", "command"),
    [
        (
            "gcd",
            {"source": Path("my photos"), "labels": "l.csv"},
            {},
            "'my photos' --labels l.csv --method gcd",
        ),
        ("frozen", {"source": "p"}, {"epochs": 3, "seed": 0}, "p --no-train --seed 0"),
        (
            "cms",
            {"labeled": "a", "unlabeled": "b"},
            {"n_clusters": (3, 5)},
            "--labeled a --unlabeled b --method cms --n-clusters 3-5 --recipe default",
        ),
        (
            "gcd",
            {"source": "p", "label_column": "k", "allow_missing": True},
            {
                "epochs": 3,
                "changes": {"gcd.training.lr": 0.5, "cms.training.lr": 1, "must_link": False},
            },
            "p --label-column k --allow-missing --method gcd --epochs 3 --set training.lr=0.5 --set must_link=false",
        ),
        (
            "frozen",
            {"source": "p"},
            {"changes": {"training.lr": 1, "inference.shift.n_neighbors": 4}},
            "p --no-train --set inference.shift.n_neighbors=4",
        ),
    ],
)
def test_the_command_of_the_first_says_what_was_said(method, given, settings, command: str) -> None:
    assert command_of(method, {**NOTHING, **given}, settings) == f"shoal discover {command}"


def test_the_command_for_images_in_memory_is_python() -> None:
    found = command_of("gcd", {**NOTHING, "source": [1, 2]}, {"n_clusters": 4, "draws": 2})
    assert found == "shoal.discover(images, labels, method='gcd', n_clusters=4)"


def test_python_gives_the_same_object(given, tmp_path: Path) -> None:
    folder, _, labels, _, config, *_ = given
    changes = {
        "training.batch_size": 16,
        "training.epochs": 1,
        "training.views.pool": 4,
        "inference.shift.n_neighbors": 4,
    }
    how = {
        "config": config,
        "changes": changes,
        "device": "cpu",
        "out": tmp_path / "run",
        "verbose": False,
    }
    found = compare(folder, labels, methods=["cms", "agglomerative"], **how)
    assert found.to_dict() == json.loads(
        (tmp_path / "run" / "comparison.json").read_text(encoding="utf-8")
    )
    assert {row.method for row in found.rows} == {"frozen", "cms", "agglomerative"}
    assert found.best is found.rows[0]
