"""`shoal discover`: output and user errors."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import discover, refused, shoal
from shoal.report.summary import summarize_run
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def test_discover_prints_counts_the_summary_the_run_and_the_next_command(
    given, tmp_path: Path
) -> None:
    run = discover(*given, "--n-clusters", 5)
    assert run.exit_code == 0, run.stderr
    lines = run.stderr.splitlines()
    assert lines[0] == "60 images, 18 labeled in 3 categories, 42 unlabeled"
    assert any(line.startswith("Frozen result: Found 5 categories") for line in lines)
    assert (
        lines[-1]
        == f"next: shoal report {tmp_path / 'run'} --open, then shoal review {tmp_path / 'run'}"
    )
    summary, path, report = run.stdout.splitlines()
    assert "<!doctype html>" in Path(report).read_text("utf-8")[:200].lower()
    assert summary.startswith("Found 5 categories")
    assert "3 known, 2 novel" in summary
    assert Run.open(path).n_clusters == 5


@pytest.mark.slow
def test_json_output_has_counts_doubts_choice_times_and_paths(
    given, photos, tmp_path: Path
) -> None:
    (photos.folder / "zzz.jpg").write_bytes(b"")
    run = discover(*given, "--json")
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    opened = Run.open(tmp_path / "run")
    assert (found["run"], found["summary"]) == (str(opened.path), summarize_run(opened))
    assert [found[f"n_{what}"] for what in ("images", "labeled", "unlabeled", "unreadable")] == [
        60,
        18,
        42,
        1,
    ]
    assert found["n_clusters"] == found["n_known"] + found["n_novel"] == opened.n_clusters
    assert tuple(found["estimate"]["interval"]) == opened.n_clusters_interval
    assert (found["choice"], found["other_result"]) == (None, str(opened.path / "frozen"))
    assert found["seconds"] > 0
    assert found["files"]["report.html"] == str(opened.path / "report.html")
    assert all(Path(file).is_file() for file in found["files"].values())


def test_a_dry_run_prints_the_counts_once_and_writes_nothing(given, tmp_path: Path) -> None:
    run = discover(*given, "--dry-run")
    assert run.exit_code == 0
    counted, *categories = run.stdout.splitlines()
    assert counted == "60 images, 18 labeled in 3 categories, 42 unlabeled"
    assert [line.split() for line in categories] == [["6", "blue"], ["6", "green"], ["6", "red"]]
    assert "read as" in run.stderr
    assert "60 images" not in run.stderr
    found = json.loads(discover(*given, "--dry-run", "--json").stdout)
    assert (found["n_images"], found["n_labeled"], found["class_sizes"]) == (60, 18, [6, 6, 6])
    assert found["categories"] == {"blue": 6, "green": 6, "red": 6}
    assert (found["trains"], found["encoder_is_installed"], found["out"]) == (
        True,
        True,
        str(tmp_path / "run"),
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_flags_override_the_config(given, tmp_path: Path) -> None:
    run = discover(*given, "--epochs", 1, "--seed", 3, "--n-clusters", 6, "--input-size", 24)
    assert run.exit_code == 0, run.stderr
    config = Run.open(tmp_path / "run").config
    assert (config["seed"], config["n_clusters"]) == (3, 6)
    assert (config["cms"]["training"]["epochs"], config["cms"]["input_size"]) == (1, 24)


def test_method_protocol_and_recipe_are_flags(
    photos, given, tiny_encoder: Path, tmp_path: Path
) -> None:
    flags = [
        "--method",
        "agglomerative",
        "--encoder",
        tiny_encoder,
        "--protocol",
        "paper",
        "--input-size",
        16,
    ]
    run = discover(*given, *flags)
    assert run.exit_code == 0, run.stderr
    config = Run.open(tmp_path / "run").config
    assert (config["method"], config["hidden_share"]) == ("agglomerative", 0.0)
    assert "cms" not in config
    inference = config["agglomerative"]["inference"]
    assert (inference["rule"], inference["estimate_shifts"]) == ("paper", 0)
    assert "Frozen result:" not in run.stderr  # it would equal the final result


def test_resuming_a_finished_run_prints_its_result(given) -> None:
    first = discover(*given, "--no-train")
    again = discover(*given, "--no-train", "--resume")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert "is finished; there is nothing left to do" in again.stderr


def test_subfolders_are_labels_and_the_run_is_named_after_the_folder(
    photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, color in list(photos.truth.items())[:20]:
        place = photos.folder / (color if color in ("red", "green") else "unsorted")
        place.mkdir(exist_ok=True)
        (photos.folder / name).rename(place / name)
    monkeypatch.chdir(tmp_path)
    run = discover("photos", "--config", photos.config, "--no-train")
    assert run.exit_code == 0, run.stderr
    assert run.stdout.splitlines()[1:] == ["runs/photos", "runs/photos/report.html"]
    assert (tmp_path / "runs" / "photos" / "report.html").is_file()
    again = discover("photos", "--config", photos.config, "--no-train")
    assert (again.exit_code, again.stdout) == (0, run.stdout)
    refused(
        discover("photos", "--no-train", "--seed", "1"), 2, "runs/photos:", "give another --out"
    )


def test_missing_folders_and_folders_without_images_are_refused(tmp_path: Path) -> None:
    refused(discover(tmp_path / "nowhere"), 3, "no such folder")
    (tmp_path / "empty").mkdir()
    refused(discover(tmp_path / "empty"), 3, "no images")


def test_an_interrupted_run_requires_resume_and_the_same_settings(
    given, tmp_path: Path, monkeypatch
) -> None:
    from shoal.discovery import api as images

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(images, "train_and_choose", interrupt)
        stopped = discover(*given, "--epochs", 1)
    assert stopped.exit_code == 130
    assert "--resume" in stopped.stderr.splitlines()[-1]
    refused(
        discover(*given),
        2,
        "found an unfinished run; give --resume to continue it, or --force to start over",
    )
    refused(discover(*given, "--resume", "--epochs", 9), 2, "cms.training.epochs: 9, was 1")
    assert discover(*given, "--resume", "--epochs", 1).exit_code == 0


@pytest.mark.slow
def test_unusual_images_are_read_or_listed(photos, given, tmp_path: Path) -> None:
    """Images of 1 x 1 pixels, gray, 16-bit and elongated ones are read; an image of 20,000 x 20,000
    pixels, an empty one and a truncated one are listed as skipped."""
    names = sorted(photos.truth)
    Image.fromarray(np.full((1, 1, 3), 200, dtype=np.uint8)).save(photos.folder / names[0])
    Image.fromarray(np.full((20, 20), 120, dtype=np.uint8)).save(photos.folder / names[1])
    Image.fromarray(np.full((20, 20), 30_000, dtype=np.uint16)).save(photos.folder / names[2])
    Image.fromarray(np.full((3, 900, 3), 90, dtype=np.uint8)).save(photos.folder / names[3])
    Image.new("1", (20_000, 20_000)).save(photos.folder / names[4])
    (photos.folder / names[5]).write_bytes(b"")
    (photos.folder / names[6]).write_bytes((photos.folder / names[7]).read_bytes()[:80])
    run = discover(*given, "--no-train")
    assert run.exit_code == 0, run.stderr
    found = Run.open(tmp_path / "run")
    listed = (tmp_path / "run" / "skipped.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in listed] == [names[4], names[5], names[6]]
    assert [row.path for row in found.assignments] == [*names[:4], *names[7:]]
    counts = [
        line.rpartition("unlabeled, ")[2]
        for line in run.stderr.splitlines()
        if "unreadable" in line
    ]
    assert counts == [f"3 unreadable, listed in {tmp_path / 'run' / 'skipped.csv'}"]


def test_too_few_readable_images_are_refused_and_leave_no_run(photos, given, tmp_path) -> None:
    names = sorted(photos.truth)
    for name in names[:-3]:
        (photos.folder / name).write_bytes(b"no image")
    refused(discover(*given), 3, "at least 10 images", "57 unreadable", names[0])
    assert not (tmp_path / "run").exists()
    for name in names[-3:]:
        (photos.folder / name).write_bytes(b"no image")
    refused(discover(*given), 3, "none of the 60 images can be decoded")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_run_can_be_resumed(
    given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("shoal.runs.run.np.save", lambda *a, **k: full(0))
        refused(discover(*given), 1, "frozen.npy: no space left on the disk")
    assert discover(*given, "--resume").exit_code == 0
    assert Run.open(tmp_path / "run").is_finished


@pytest.mark.slow
def test_hidden_labels_do_not_affect_predictions(photos, given, tmp_path: Path) -> None:
    """The table that `discover` reads has the true classes in another column, which only `evaluate`
    uses: scrambling it changes the score, but no byte of a second run."""
    labels = dict(line.split(",") for line in photos.labels.read_text().splitlines()[1:])
    colors = list(photos.truth.values())
    parts = ("assignments.csv", "categories.csv", "estimate.json", "shifts.json", "embeddings.npy")
    found = []
    scores = []
    for truth in (colors, np.random.default_rng(0).permutation(colors).tolist()):
        rows = [
            f"{name},{labels.get(name, '')},{color}"
            for name, color in zip(photos.truth, truth, strict=True)
        ]
        photos.labels.write_text("\n".join(["path,label,color", *rows]))
        assert discover(*given, "--force", "--epochs", 1).exit_code == 0
        found.append([(tmp_path / "run" / part).read_bytes() for part in parts])
        hidden = ["--truth", str(photos.labels), "--label-column", "color", "--json"]
        run = shoal("evaluate", tmp_path / "run", *hidden)
        assert run.exit_code == 0, run.stderr
        scores.append(json.loads(run.stdout)["all"])
    assert scores[0] > scores[1]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--n-clusters 2", 2),
        ("--n-clusters 1000", 2),
        ("--n-clusters 1-2", 2),
        ("--n-clusters 61-99", 2),
        ("--encoder ./nowhere", 2),
        ("--encoder efficientnet-lite3", 2),
        ("--encoder dino-vitb16", 4),
        ("--input-size 4", 2),
        ("--input-size 100000", 2),
        ("--device tpu", 2),
        ("--seed 99999999999999999999", 2),
        ("--seed -1 --method agglomerative", 2),
        ("--out photos --force", 2),
        ("--out labels.csv", 2),
        ("--out labels.csv/run", 2),
        ("--recipe cub", 2),
        ("--method kmeans", 2),
        ("--method agglomerative --epochs 3", 2),
        ("--method agglomerative --train", 2),
        ("--protocol papers", 2),
        ("--epochs 0", 2),
        ("--epochs 5 --no-train", 2),
        ("--labels nowhere.csv", 3),
        ("--config nowhere.yaml", 2),
        ("--unlabeled .", 2),
        ("--labeled .", 2),
        ("--resume --force", 2),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_user_errors_are_refused_before_anything_is_written(
    given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, code: int, dry: list[str]
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words = ["discover", *map(str, given), *flags.split(), *dry]
    refused(shoal(*words), code)
    assert sorted(tmp_path.rglob("*")) == before
