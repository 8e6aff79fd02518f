"""`shoal compare`: output, user errors and kills."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import Result

from commands import refused, shoal
from held_runs import start_held
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = (
    "training.batch_size=16",
    "training.epochs=2",
    "training.views.pool=4",
    "inference.shift.n_neighbors=4",
)


def run_compare(*arguments: object) -> Result:
    return shoal("compare", *arguments, "--device", "cpu")


@pytest.fixture
def given(make_photos, tmp_path: Path) -> list[object]:
    """120 photos of five known colors, half of them labeled, and short training of two methods."""
    photos = make_photos(120)
    labels = tmp_path / "half.csv"
    with labels.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("path", "label"), *sorted(photos.truth.items())[::2]])
    small = [word for change in SMALL for word in ("--set", change)]
    where = ["--config", photos.config, "--methods", "cms,gcd", "--out", tmp_path / "run"]
    return [photos.folder, "--labels", labels, *where, *small]


@pytest.mark.slow
def test_a_comparison_prints_a_table_and_a_working_command_and_resume_prints_it_again(
    given, tmp_path: Path
) -> None:
    run = run_compare(*given)
    assert run.exit_code == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].split() == [
        "rank",
        "method",
        "All",
        "95",
        "%",
        "interval",
        "Known",
        "Novel",
        "seconds",
    ]
    assert {line.split()[1] for line in lines[1:4]} == {"frozen", "CMS", "GCD"}
    assert lines[-1] == str(tmp_path / "run" / "compare.html")
    assert lines[-3] == "to run the best method with all labels:"
    messages = run.stderr.splitlines()
    announced = next(at for at, line in enumerate(messages) if line.startswith("2 training runs"))
    assert any("labels held out from every method" in line for line in messages[:announced])
    again = run_compare(*given, "--resume")
    assert (again.exit_code, again.stdout) == (0, run.stdout)
    found = json.loads(run_compare(*given, "--resume", "--json").stdout)
    assert found == json.loads((tmp_path / "run" / "comparison.json").read_text(encoding="utf-8"))
    words = shlex.split(found["command"])
    assert words[:2] == ["shoal", "discover"]
    done = shoal(*words[1:], "--no-train", "--out", tmp_path / "winner", "--dry-run")
    assert done.exit_code == 0, done.stderr


def test_a_dry_run_prints_the_plan_and_writes_nothing(given, tmp_path: Path) -> None:
    run = run_compare(*given, "--dry-run", "--json")
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["methods"] == ["frozen", "cms", "gcd"]
    assert (found["n_trainings"], found["epochs"]) == (2, {"cms": 2, "gcd": 2})
    assert "held out from every method" in found["held_out"][0]
    assert not (tmp_path / "run").exists()
    assert (
        run_compare(*given, "--dry-run").stdout.splitlines()[1]
        == "frozen, cms and gcd: 2 training runs"
    )


@pytest.mark.slow
def test_a_comparison_killed_in_the_second_method_resumes_to_the_same_bytes(
    given, tmp_path: Path
) -> None:
    """The command is killed in gcd, the only method with a 16th step. A second process is refused
    meanwhile, and the finished method is unchanged."""
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
            "held_out.csv",
            "embeddings.npy",
            "model.safetensors",
        ):
            assert (cut / part).read_bytes() == (tmp_path / "whole" / part).read_bytes(), part
    assert len(Run(cut / "methods" / "gcd").metrics) == 3


@pytest.mark.parametrize(
    "flags",
    [
        "--methods cms",
        "--methods cms,cms",
        "--methods cms,nonsense",
        "--repeats 0",
        "--n-clusters 2",
        "--resume --force",
        "--set n_tail_blocks=99",
    ],
)
def test_user_errors_are_refused_before_anything_is_written(
    given, tmp_path: Path, flags: str
) -> None:
    refused(run_compare(*given, *flags.split()), 2)
    refused(run_compare(*given, *flags.split(), "--dry-run"), 2)
    assert not (tmp_path / "run").exists()


def test_too_few_labels_are_refused(given, tmp_path: Path) -> None:
    labels = Path(str(given[2]))
    labels.write_text("\n".join(labels.read_text().splitlines()[:9]))
    refused(run_compare(*given), 3)
    assert not (tmp_path / "run").exists()
