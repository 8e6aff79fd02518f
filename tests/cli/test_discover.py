"""`shoal discover`: what it prints where, and what it says to each mistake."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from several_processes import finish_processes, start_processes
from shoal.cli.main import app
from shoal.discovery.answers import answer_in_words
from shoal.runs import Run
from shoal.words import doubt_labels

pytestmark = pytest.mark.usefixtures("one_thread")


def discover(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["discover", *map(str, arguments), "--device", "cpu"])


def refused(run: Result, code: int, *words: str) -> None:
    """One line on stderr that starts with 'error:' and says `words`; nothing on stdout, no traceback."""
    assert (run.exit_code, run.stdout) == (code, ""), run.stderr
    last = run.stderr.splitlines()[-1]
    assert last.startswith("error: "), run.stderr
    assert "Traceback" not in run.stderr
    assert all(word in last for word in words), last


@pytest.fixture
def given(photos, tmp_path: Path) -> list[object]:
    return [
        photos.folder,
        "--labels",
        photos.labels,
        "--config",
        photos.config,
        "--out",
        tmp_path / "run",
    ]


def test_it_says_what_it_found_and_ends_with_the_answer_the_run_and_the_next_command(
    given, tmp_path: Path
) -> None:
    run = discover(*given, "--n-clusters", 5)
    assert run.exit_code == 0, run.stderr
    lines = run.stderr.splitlines()
    assert lines[0] == "60 images, 18 labeled in 3 categories, 42 unlabeled"
    assert any(
        line.startswith("first answer, without training: 3 known categories found")
        for line in lines
    )
    assert (
        lines[-1]
        == f"next: shoal report {tmp_path / 'run'} --open, then shoal review {tmp_path / 'run'}"
    )
    answer, path, report = run.stdout.splitlines()
    assert "<!doctype html>" in Path(report).read_text("utf-8")[:200].lower()
    assert answer.startswith("3 known categories found, 2 likely new, ")
    assert "unsure" in answer
    assert Run.open(path).n_clusters == 5


@pytest.mark.slow
def test_json_is_one_object_with_counts_doubts_choice_times_and_paths(
    given, photos, tmp_path: Path
) -> None:
    (photos.folder / "zzz.jpg").write_bytes(b"")
    run = discover(*given, "--json")
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    opened = Run.open(tmp_path / "run")
    assert (found["run"], found["answer"]) == (str(opened.path), answer_in_words(opened))
    assert [found[f"n_{what}"] for what in ("images", "labeled", "unlabeled", "unreadable")] == [
        60,
        18,
        42,
        1,
    ]
    assert found["n_clusters"] == found["n_known"] + found["n_novel"] == opened.n_clusters
    assert found["estimate"]["rule"] == "pairs"
    assert tuple(found["estimate"]["interval"]) == opened.n_clusters_interval
    shares = dict(
        zip(
            *(opened.json("estimate")["curve"][name] for name in ("n_clusters", "accuracy")),
            strict=True,
        )
    )
    near = [number for number, share in shares.items() if share >= max(shares.values()) - 0.01]
    assert found["estimate"]["near_best"] == [min(near), max(near)]
    assert found["validation_accuracy"] == opened.metrics[-1]["validation_accuracy"]
    assert (found["choice"], found["other_answer"]) == (None, str(opened.path / "frozen"))
    assert found["seconds"] > 0
    assert found["files"]["report.html"] == str(opened.path / "report.html")
    assert all(
        Path(file).is_file() for file in (*found["files"].values(), found["estimate"]["file"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--no-train"], []], ids=["frozen", "trained"])
def test_a_number_of_categories_that_rests_on_few_labels_is_doubted_unless_it_is_given(
    photos, given, flags
) -> None:
    """18 labels of 3 categories are six of each, but few categories; of 14 there are fewer than five of each."""
    runs = [discover(*given, *flags, "--json")]
    photos.labels.write_text("\n".join(photos.labels.read_text().splitlines()[:-4]))
    runs += [
        discover(*given, *flags, "--force", "--json", *more) for more in ([], ["--n-clusters", 5])
    ]
    doubts = [doubt_labels(18, 3), doubt_labels(14, 3), None]
    assert [json.loads(run.stdout)["estimate"]["doubt"] for run in runs] == doubts
    said = [[line for line in run.stderr.splitlines() if "rests on" in line] for run in runs]
    assert said == [[f"note: {doubt}"] if doubt else [] for doubt in doubts]


def test_a_dry_run_says_what_was_found_once_and_writes_nothing(given, tmp_path: Path) -> None:
    run = discover(*given, "--dry-run")
    assert run.exit_code == 0
    assert run.stdout == "60 images, 18 labeled in 3 categories, 42 unlabeled\n"
    assert "read as" in run.stderr
    assert "60 images" not in run.stderr
    found = json.loads(discover(*given, "--dry-run", "--json").stdout)
    assert (found["n_images"], found["n_labeled"], found["class_sizes"]) == (60, 18, [6, 6, 6])
    assert (found["trains"], found["encoder_is_here"], found["out"]) == (
        True,
        True,
        str(tmp_path / "run"),
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--n-clusters", 2], 2, "n_clusters: found 2"),
        (["--encoder", "./nowhere"], 4, "no folder or file './nowhere'"),
        (["--encoder", "efficientnet-lite3"], 2, "did you mean 'efficientnet-lite2'"),
        (["--encoder", "dino-vitb16"], 4, "weights (343 MB) are not here"),
        (["--input-size", 4], 2, "input size: found 4, expected at least 8"),
        (["--input-size", 100000], 2, "input size: found 100000, expected at most 4,096 pixels"),
        (["--device", "tpu"], 2, "found 'tpu', expected cpu"),
        (
            ["--seed", 99999999999999999999],
            2,
            "seed: found 99999999999999999999, expected a whole number from 0",
        ),
        (
            ["--seed", -1, "--method", "agglomerative"],
            2,
            "seed: found -1, expected a whole number from 0",
        ),
        (["--out", "photos"], 2, "photos: holds files but no run"),
        (["--out", "labels.csv"], 2, "labels.csv: is a file, expected a folder"),
        (["--out", "labels.csv/run"], 2, "labels.csv: is a file, expected a folder"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_a_dry_run_refuses_what_the_run_would_refuse(
    given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags, code, words
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    refused(
        CliRunner().invoke(app, ["discover", *map(str, [*given, "--dry-run", *flags])]), code, words
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_refuses_a_finished_run_unless_it_may_be_overwritten_or_shown_again(
    given, tmp_path: Path
) -> None:
    assert discover(*given, "--no-train").exit_code == 0
    refused(discover(*given, "--no-train", "--dry-run"), 2, "holds a finished run; give --force")
    over, again = (
        discover(*given, "--no-train", "--dry-run", flag) for flag in ("--force", "--resume")
    )
    assert (over.exit_code, again.exit_code) == (0, 0)
    assert (
        over.stderr.splitlines()[-1]
        == f"nothing was written; without --dry-run it goes to {tmp_path / 'run'}"
    )
    assert again.stderr.splitlines()[-1].startswith(
        f"{tmp_path / 'run'} is finished, there is nothing left to do; "
    )
    refused(discover(*given, "--dry-run", "--resume"), 2, "train: True, was False")
    assert Run.open(tmp_path / "run").is_finished


def test_a_dry_run_downloads_nothing_and_says_that_the_run_would(
    given, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_arguments: object) -> None:
        raise AssertionError("a dry run asked the network")

    monkeypatch.setattr("socket.socket.connect", connect)
    run = discover(*given, "--encoder", "someone/some-model", "--dry-run")
    assert run.exit_code == 0, run.stderr
    assert "note: the encoder someone/some-model is not here, and would be downloaded" in run.stderr


@pytest.mark.slow
def test_flags_win_over_the_config(given, tmp_path: Path) -> None:
    run = discover(*given, "--epochs", 1, "--seed", 3, "--n-clusters", 6, "--input-size", 24)
    assert run.exit_code == 0, run.stderr
    config = Run.open(tmp_path / "run").config
    assert (config["seed"], config["n_clusters"]) == (3, 6)
    assert (config["cms"]["training"]["epochs"], config["cms"]["input_size"]) == (1, 24)


def test_a_method_a_protocol_and_its_recipe_are_flags(
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
    assert "first answer" not in run.stderr  # it would be the same as the last


def test_resuming_a_finished_run_shows_its_answer_again(given) -> None:
    first = discover(*given, "--no-train")
    again = discover(*given, "--no-train", "--resume")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert "is finished, there is nothing left to do" in again.stderr


def test_folders_are_labels_too_and_the_run_is_named_after_the_folder(
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
    run = discover("photos", "--config", photos.config, "--no-train")
    refused(run, 2, "runs/photos: holds a finished run; give --force")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--n-clusters", 2], 2, ["n_clusters: found 2 with 3 known classes", "expected 3 to 60"]),
        (["--n-clusters", 1000], 2, ["n_clusters: found 1000"]),
        (["--encoder", "efficientnet-lite3"], 2, ["did you mean 'efficientnet-lite2'"]),
        (["--encoder", "./nowhere"], 4, ["no folder or file './nowhere'"]),
        (["--recipe", "cub"], 2, ["recipe and config: found both"]),
        (["--method", "kmeans"], 2, ["no method 'kmeans'; known: agglomerative, ", ", simgcd"]),
        (
            ["--method", "agglomerative", "--epochs", 3],
            2,
            ["epochs: found 3, but the method agglomerative trains"],
        ),
        (["--protocol", "papers"], 2, ["did you mean 'paper'"]),
        (["--device", "tpu"], 2, ["found 'tpu', expected cpu"]),
        (["--epochs", 0], 2, ["epochs: found 0, expected at least 1"]),
        (["--input-size", 4], 2, ["input size: found 4, expected at least 8"]),
        (["--labels", "nowhere.csv"], 3, ["nowhere.csv: no such file"]),
        (["--config", "nowhere.yaml"], 2, ["nowhere.yaml: no such file"]),
        (
            ["--unlabeled", "."],
            2,
            ["give `labeled` and `unlabeled` together, and neither images nor `labels` beside"],
        ),
        (
            ["--labeled", "."],
            2,
            ["give `labeled` and `unlabeled` together, and neither images nor"],
        ),
        (["--epochs", 5, "--no-train"], 2, ["epochs: found 5, but nothing is to be trained"]),
        (
            ["--method", "agglomerative", "--answer", "better"],
            2,
            ["but the method agglomerative trains nothing"],
        ),
        (
            ["--method", "agglomerative", "--train"],
            2,
            ["train: asked for, but the method agglomerative"],
        ),
        (["--tensorboard", "--no-train"], 2, ["tensorboard: nothing is to be trained"]),
        (["--resume", "--force"], 2, ["resume and force: found both"]),
        (
            ["--answer", "trained", "--no-train"],
            2,
            ["answer: found 'trained', but nothing is to be trained"],
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_a_mistake_is_one_line_with_its_exit_code_and_leaves_nothing(
    given, tmp_path: Path, flags, code, words
) -> None:
    run = CliRunner().invoke(app, ["discover", *map(str, [*given, *flags])])
    refused(run, code, *words)
    assert not (tmp_path / "run").exists()


def test_a_column_is_refused_where_no_table_is_read(photos, tmp_path: Path) -> None:
    for name, color in list(photos.truth.items())[:20]:
        (photos.folder / color).mkdir(exist_ok=True)
        (photos.folder / name).rename(photos.folder / color / name)
    given = [
        photos.folder,
        "--config",
        photos.config,
        "--out",
        tmp_path / "run",
        "--label-column",
        "color",
    ]
    refused(discover(*given), 2, "column 'color': no table is read here")


def test_a_dry_run_counts_the_files_that_are_no_images(photos, given, tmp_path: Path) -> None:
    first, *others = sorted(photos.truth)
    (photos.folder / first).write_bytes(b"no image")
    (photos.folder / "empty.jpg").write_bytes(b"")
    n = 17 if first in photos.labels.read_text() else 18
    run = discover(*given, "--dry-run")
    assert (
        run.stdout == f"59 images, {n} labeled in 3 categories, {59 - n} unlabeled, 2 unreadable\n"
    )
    found = json.loads(discover(*given, "--dry-run", "--json").stdout)
    assert [found[f"n_{what}"] for what in ("images", "labeled", "unlabeled", "unreadable")] == [
        59,
        n,
        59 - n,
        2,
    ]
    assert discover(*given, "--no-train").stderr.splitlines()[0] == run.stdout.strip()
    for name in others[9:]:
        (photos.folder / name).write_bytes(b"no image")
    refused(discover(*given, "--dry-run", "--force"), 3, "at least 10 images", "(52 unreadable)")


def test_a_folder_that_is_not_there_and_one_without_images(tmp_path: Path) -> None:
    refused(discover(tmp_path / "nowhere"), 3, "no such folder")
    (tmp_path / "empty").mkdir()
    refused(discover(tmp_path / "empty"), 3, "no images")


def test_one_known_category_and_too_few_images_are_refused_with_the_number_needed(
    make_photos, tmp_path: Path
) -> None:
    photos = make_photos(60)
    rows = [
        row for row in photos.labels.read_text().splitlines() if not row.endswith(("red", "green"))
    ]
    photos.labels.write_text("\n".join(rows))
    given = [
        photos.folder,
        "--labels",
        photos.labels,
        "--config",
        photos.config,
        "--out",
        tmp_path / "run",
    ]
    refused(
        discover(*given),
        3,
        "needs labeled images of at least 2 categories, found 1",
        "with --n-clusters",
    )
    for name in list(photos.truth)[8:]:
        (photos.folder / name).unlink()
    refused(discover(*given, "--allow-missing"), 3, "discovery needs at least 10 images; add 2")


def test_a_folder_that_holds_something_else_is_never_written_into(given, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("")
    words = "holds files but no run (no provenance.json); choose an empty or new folder"
    refused(discover(*given, "--force"), 2, words)
    (tmp_path / "file").write_text("")
    refused(discover(*given, "--out", tmp_path / "file"), 2, "is a file, expected a folder")


def test_an_interrupted_run_asks_for_resume_and_other_settings_are_listed(
    given, tmp_path: Path, monkeypatch
) -> None:
    from shoal.discovery import pipeline as images

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(images, "answer_trained", interrupt)
        stopped = discover(*given, "--epochs", 1)
    assert stopped.exit_code == 130
    last = stopped.stderr.splitlines()[-1]
    assert last.startswith(
        "interrupted; `shoal discover` and `shoal compare` go on with --resume, every other command"
    )
    refused(
        discover(*given),
        2,
        "holds an unfinished run; give --resume to go on with it, or --force to start over",
    )
    refused(discover(*given, "--resume", "--epochs", 9), 2, "cms.training.epochs: 9, was 1")
    assert discover(*given, "--resume", "--epochs", 1).exit_code == 0


@pytest.mark.slow
def test_images_of_every_odd_kind_are_read_or_listed(photos, given, tmp_path: Path) -> None:
    """1 x 1 pixels, gray, 16 bit and long ones are read; a 20,000 x 20,000 one, an empty and a cut one are listed."""
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
    assert [skip.path for skip in found.skipped] == [names[4], names[5], names[6]]
    assert [row.path for row in found.assignments] == [*names[:4], *names[7:]]
    counts = [
        line.rpartition("unlabeled, ")[2]
        for line in run.stderr.splitlines()
        if "unreadable" in line
    ]
    assert counts == ["1 unreadable", f"3 unreadable, listed in {tmp_path / 'run' / 'skipped.csv'}"]
    assert run.stderr.splitlines()[0].endswith(
        " unlabeled, 1 unreadable"
    )  # by its first bytes; others when decoded


@pytest.mark.slow
def test_gray_images_alone_are_enough(photos, given, tmp_path: Path) -> None:
    for name in photos.truth:
        Image.open(photos.folder / name).convert("L").save(photos.folder / name)
    assert discover(*given, "--n-clusters", 4).exit_code == 0


def test_images_none_or_too_few_of_which_can_be_read_are_refused_and_leave_no_run(
    photos, given, tmp_path
) -> None:
    names = sorted(photos.truth)
    for name in names[:-3]:
        (photos.folder / name).write_bytes(b"no image")
    refused(discover(*given), 3, "at least 10 images", f"(57 unreadable, such as {names[0]}: ")
    assert not (tmp_path / "run").exists()
    for name in names[-3:]:
        (photos.folder / name).write_bytes(b"no image")
    refused(discover(*given), 3, "none of the 60 images can be decoded")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_full_disk_is_said_in_words_and_the_run_can_be_resumed(
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


def test_a_hub_encoder_without_a_network_says_where_to_get_it(
    given, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(
        discover(*given, "--encoder", "dino-vitb16"),
        4,
        "(343 MB) are not here",
        "shoal encoders get dino-vitb16",
    )
    refused(discover(*given, "--encoder", "someone/some-model"), 4, "someone/some-model")


@pytest.mark.slow
def test_hidden_labels_change_nothing_that_is_predicted(photos, given, tmp_path: Path) -> None:
    """The truth lies in the very table that `discover` reads, as a column it was not told of, and enters with
    `evaluate` alone: scrambled, it changes the score and not a byte of a second run."""
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
        run = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), *hidden])
        assert run.exit_code == 0, run.stderr
        scores.append(json.loads(run.stdout)["all"])
    assert scores[0] > scores[1]
    assert found[0] == found[1]


@pytest.mark.slow
def test_it_works_as_a_program_too(given, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "discover", *map(str, given), "--no-train"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[1:] == [
        str(tmp_path / "run"),
        str(tmp_path / "run" / "report.html"),
    ]


SHOAL = "import sys; from shoal.cli.main import main; sys.argv[1:] = {words!r}; main()"


@pytest.mark.slow
def test_two_processes_as_torchrun_starts_them_find_what_one_does_and_one_of_them_speaks(
    given, tmp_path: Path
) -> None:
    words = [
        "discover",
        *map(str, given[:-1]),
        str(tmp_path / "together"),
        "--n-clusters",
        "5",
        "--device",
        "cpu",
    ]
    started = start_processes(SHOAL.format(words=words))
    assert discover(*given, "--n-clusters", 5).exit_code == 0
    first, second = finish_processes(started)
    assert "known categories found" in first
    assert second == ""
    alone, together = (Run(tmp_path / name).assignments for name in ("run", "together"))
    assert [(row.path, row.category) for row in alone] == [
        (row.path, row.category) for row in together
    ]
