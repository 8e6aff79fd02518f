"""Each format by hand: two folders with an image of the same name, and categories that no file
system likes."""

import csv
import io
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from shoal.data.readers import read_collection
from shoal.discovery.export.formats import FORMATS, export_run
from shoal.errors import DataError, UnknownName, UsageError
from shoal.review import verbs
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Category, Run

IMAGES = {"x/1.png": "cat", "y/1.png": "cat", "y/2.png": "hot/cold", "z.png": 'tab\t"&<'}


@dataclass(frozen=True)
class Nothing:
    """No settings."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    names = list(dict.fromkeys(IMAGES.values()))
    run = Run.create(tmp_path / "run")
    run.start(Nothing(), seed=0, device="cpu", command="", root=str(tmp_path / "photos"))
    for path in IMAGES:
        (tmp_path / "photos" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / path).write_bytes(path.encode())
    run.write_assignments(
        Assignment(
            path=path,
            label_given="cat" if path == "x/1.png" else "",
            category_id=names.index(category),
            category=category,
            is_novel=category != "cat",
            confidence=0.75,
            outlier_score=0.25,
        )
        for path, category in IMAGES.items()
    )
    run.write_categories(
        Category(category_id=i, category=name, is_novel=i > 0, size=1, n_labeled=0, confidence=1.0)
        for i, name in enumerate(names)
    )
    run.write_array("embeddings", np.eye(4, 3, dtype=np.float32) + 0.125)
    run.finish()
    return run


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


def test_a_folder_per_category_shows_each_image_once(run: Run, tmp_path: Path) -> None:
    """Two cats are both called 1.png, so the cats are named by their paths."""
    out = export_run(run, "imagefolder", tmp_path / "out").folder
    files = {
        file.relative_to(out).as_posix(): file.read_bytes().decode() for file in out.rglob("*.png")
    }
    assert files == {
        "cat/x%2F1.png": "x/1.png",
        "cat/y%2F1.png": "y/1.png",
        "hot%2Fcold/2.png": "y/2.png",
        "tab%09%22&%3C/z.png": "z.png",
    }
    listed = {row["file"]: (row["path"], row["category"]) for row in rows(out / "export.csv")}
    assert listed == {file: (path, IMAGES[path]) for file, path in files.items()}
    assert all(file.is_symlink() for file in out.rglob("*.png"))


def test_originals_are_neither_moved_nor_changed(run: Run, tmp_path: Path) -> None:
    for name in FORMATS:
        export_run(run, name, tmp_path / name)
    assert {path: (tmp_path / "photos" / path).read_bytes().decode() for path in IMAGES} == {
        p: p for p in IMAGES
    }
    copied = export_run(run, "imagefolder", tmp_path / "copies", linking="copy").folder
    assert not any(file.is_symlink() for file in copied.rglob("*"))


def test_the_hugging_face_folder_is_read_back_with_its_labels(run: Run, tmp_path: Path) -> None:
    out = export_run(run, "hf", tmp_path / "out").folder
    found = read_collection(out)
    assert {
        name: found.classes[label] for name, label in zip(found.names, found.labels, strict=True)
    } == IMAGES
    assert rows(out / "metadata.csv")[0] == {
        "file_name": "x/1.png",
        "label": "cat",
        "label_given": "cat",
        "is_novel": "false",
        "confidence": "0.750000",
        "outlier_score": "0.250000",
        **{"status": "predicted", "classified_by": "", "classified_at": ""},
    }


def test_tables_are_the_runs_own_and_parquet_says_the_same(run: Run, tmp_path: Path) -> None:
    out = export_run(run, "csv", tmp_path / "out").folder
    for part in ("assignments.csv", "categories.csv"):
        assert (out / part).read_bytes() == (run.path / part).read_bytes()
    parquet = (
        pytest.importorskip("pyarrow.parquet").read_table(out / "assignments.parquet").to_pylist()
    )
    assert [row["category"] for row in parquet] == list(IMAGES.values())


def test_a_spreadsheet_computes_nothing_and_the_data_files_keep_every_name(
    run: Run, tmp_path: Path
) -> None:
    names = ["=1+1", "+x", "-@y", "@sum", "\t=z", " =w", "-0.5", "plain"]
    first = run.assignments[0]
    run.write_assignments(
        replace(first, path=name, nearest_known_similarity=-0.25) for name in names
    )
    found = export_run(run, "spreadsheet", tmp_path / "out")
    table = list(
        csv.reader(io.StringIO((found.folder / "assignments.csv").read_bytes().decode("utf-8-sig")))
    )
    assert [row[0] for row in table[1:]] == [
        "'=1+1",
        "'+x",
        "'-@y",
        "'@sum",
        "'\t=z",
        "' =w",
        "-0.5",
        "plain",
    ]
    assert {row[8] for row in table[1:]} == {"-0.250000"}
    assert "(6 names here)" in found.steps[0]
    plain = export_run(run, "csv", tmp_path / "csv").folder
    assert (plain / "assignments.csv").read_bytes() == (run.path / "assignments.csv").read_bytes()


@pytest.mark.parametrize("name", ["labelstudio", "imagefolder", "hf", "fiftyone"])
def test_no_format_names_a_path_outside_of_the_collection(
    run: Run, tmp_path: Path, name: str
) -> None:
    run.write_assignments(
        [replace(run.assignments[0], path="../../etc/passwd"), *run.assignments[1:]]
    )
    with pytest.raises(DataError, match="leads out of"):
        export_run(run, name, tmp_path / "out")


def test_label_studio_gets_a_task_per_image_and_choices_for_all_categories(
    run: Run, tmp_path: Path
) -> None:
    out = export_run(run, "labelstudio", tmp_path / "out").folder
    tasks = json.loads((out / "tasks.json").read_text(encoding="utf-8"))
    assert [task["data"]["image"] for task in tasks] == [
        f"/data/local-files/?d=photos/{path}" for path in IMAGES
    ]
    choices = [task["predictions"][0]["result"][0]["value"]["choices"] for task in tasks]
    assert choices == [[category] for category in IMAGES.values()]
    assert ["annotations" in task for task in tasks] == [True, False, False, False]
    view = ElementTree.fromstring((out / "labels.xml").read_text(encoding="utf-8"))
    assert [choice.get("value") for choice in view.iter("Choice")] == list(
        dict.fromkeys(IMAGES.values())
    )
    assert view.find("Choices").get("name") == tasks[0]["predictions"][0]["result"][0]["from_name"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("imagefolder", "export.csv"),
        ("hf", "metadata.csv"),
        ("csv", "assignments.csv"),
        ("fiftyone", "labels.json"),
        ("projector", "metadata.tsv"),
    ],
)
def test_a_given_label_wins_over_the_category_unless_the_prediction_is_asked_for(
    run: Run, tmp_path: Path, name: str, file: str
) -> None:
    """y/2.png came as a cat and was put with hot/cold."""
    run.write_assignments(
        replace(row, label_given="cat" if row.path == "y/2.png" else "") for row in run.assignments
    )
    kept = export_run(run, name, tmp_path / "kept")
    taken = export_run(run, name, tmp_path / "taken", given_labels="predicted")
    assert kept.n_disagreeing == taken.n_disagreeing == 1
    assert "hot/cold" not in (kept.folder / file).read_text(encoding="utf-8")
    assert "hot/cold" in (taken.folder / file).read_text(encoding="utf-8")
    if name == "csv":
        sizes = {
            row["category"]: (row["size"], row["n_labeled"])
            for row in rows(kept.folder / "categories.csv")
        }
        assert sizes == {"cat": ("3", "1"), "hot/cold": ("0", "0"), 'tab\t"&<': ("1", "0")}
        assert rows(kept.folder / file)[2]["category_id"] == "0"
    assert run.assignments[2].category == "hot/cold"  # the run itself is left alone


def test_what_people_split_off_or_threw_out_is_exported_so_whatever_its_label(
    run: Run, tmp_path: Path
) -> None:
    """x/1.png, y/1.png and y/2.png came as cats; the third is in another category, out of which it
    is thrown."""
    given = {"x/1.png": "cat", "y/1.png": "cat", "y/2.png": "cat"}
    run.write_assignments(
        replace(row, label_given=given.get(row.path, "")) for row in run.assignments
    )
    review = Review(Run(run.path))
    verbs.split(review, "cat", {"lynx": ["x/1.png"]}, by="ann")
    verbs.decide(review, "reject", None, ["y/2.png"], by="ann")
    kept = export_run(ReviewedRun.open(run.path), "csv", tmp_path / "kept")
    assert [row["category"] for row in rows(kept.folder / "assignments.csv")] == [
        "lynx",
        "cat",
        "cat",
        'tab\t"&<',
    ]
    assert kept.n_disagreeing == 1
    tasks = (
        export_run(ReviewedRun.open(run.path), "labelstudio", tmp_path / "tasks").folder
        / "tasks.json"
    )
    said = [task.get("annotations") for task in json.loads(tasks.read_text("utf-8"))]
    assert [found and found[0]["result"][0]["value"]["choices"] for found in said] == [
        ["lynx"],
        ["cat"],
        ["cat"],
        None,
    ]
    verbs.decide(review, "reject", None, ["y/1.png"], by="ann")
    again = export_run(ReviewedRun.open(run.path), "csv", tmp_path / "again")
    assert rows(again.folder / "assignments.csv")[1]["category"] == ""


def test_label_studio_gets_what_the_run_found_beside_what_people_said(
    run: Run, tmp_path: Path
) -> None:
    """Of z.png, alone in its category, the run's answer is no choice any more."""
    review = Review(Run(run.path))
    verbs.move(review, ["y/1.png", "z.png"], "hot/cold", by="ann")
    verbs.rename(review, "cat", "lynx", by="ann")
    out = export_run(ReviewedRun.open(run.path), "labelstudio", tmp_path / "out").folder
    tasks = {
        task["data"]["path"]: task for task in json.loads((out / "tasks.json").read_text("utf-8"))
    }
    (predicted,) = tasks["y/1.png"]["predictions"]
    assert (predicted["result"][0]["value"]["choices"], predicted["score"]) == (["lynx"], 0.75)
    assert tasks["y/1.png"]["annotations"][0]["result"][0]["value"]["choices"] == ["hot/cold"]
    assert {"status": "moved", "classified_by": "ann"}.items() <= tasks["y/1.png"]["data"].items()
    assert tasks["y/1.png"]["data"]["classified_at"]
    assert "predictions" not in tasks["z.png"]
    assert tasks["y/2.png"]["data"]["status"] == "predicted"


def test_fiftyone_gets_numbered_files_and_a_label_for_each(run: Run, tmp_path: Path) -> None:
    out = export_run(run, "fiftyone", tmp_path / "out").folder
    labels = json.loads((out / "labels.json").read_text(encoding="utf-8"))["labels"]
    for row in rows(out / "paths.csv"):
        assert (out / row["file"]).read_bytes().decode() == row["path"]
        assert labels[Path(row["file"]).stem] == {"label": IMAGES[row["path"]], "confidence": 0.75}
    assert len(labels) == 4


def test_the_projector_gets_a_line_per_image_in_both_files(run: Run, tmp_path: Path) -> None:
    out = export_run(run, "projector", tmp_path / "out").folder
    vectors = np.loadtxt(out / "vectors.tsv", delimiter="\t")
    np.testing.assert_allclose(vectors, run.array("embeddings"))
    lines = [
        line.split("\t") for line in (out / "metadata.tsv").read_text(encoding="utf-8").splitlines()
    ]
    assert lines[0][:2] == ["path", "category"]
    assert [line[0] for line in lines[1:]] == list(IMAGES)
    assert lines[4][1] == 'tab "&<'  # a tab cannot be written in this format
    assert {len(line) for line in lines} == {8}


def test_an_edited_run_cannot_reach_out_of_its_folders(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"x")
    text = (run.path / "assignments.csv").read_text().replace("z.png", "../secret.png")
    (run.path / "assignments.csv").write_text(text)
    for name in ("imagefolder", "hf", "fiftyone"):
        with pytest.raises(DataError, match="leads out of"):
            export_run(run, name, tmp_path / "out" / name)
    assert not list(tmp_path.rglob("out/**/secret.png"))


def test_what_cannot_be_exported_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no format 'huggingface'; known: csv, fiftyone"):
        export_run(run, "huggingface", tmp_path / "out")
    with pytest.raises(UsageError, match="given labels: found 'mine', expected keep or predicted"):
        export_run(run, "csv", tmp_path / "out", given_labels="mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="holds files already"):
        export_run(run, "csv", tmp_path / "full")
    for target, words in (
        ("mine.txt", "mine.txt: is a file"),
        ("mine.txt/out", "mine.txt/out: cannot be written"),
    ):
        with pytest.raises(UsageError, match=words):
            export_run(run, "csv", tmp_path / "full" / target)
    run.write_json("provenance", {**run.provenance, "root": ""})
    with pytest.raises(UsageError, match="was not made from image files"):
        export_run(run, "imagefolder", tmp_path / "out")


@pytest.mark.parametrize("name", ["imagefolder", "hf", "fiftyone"])
def test_images_are_not_exported_among_those_that_the_next_discovery_reads(
    run: Run, tmp_path: Path, name: str
) -> None:
    before = sorted((tmp_path / "photos").rglob("*"))
    run.write_json("provenance", {**run.provenance, "folders": ["."]})
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    for out in (
        tmp_path / "photos" / "sorted",
        tmp_path / "photos" / "x" / "deep",
        tmp_path / "link" / "sorted",
    ):
        with pytest.raises(
            UsageError, match="would find every image twice; choose a folder beside it"
        ):
            export_run(run, name, out)
    export_run(run, "csv", tmp_path / "photos" / "tables")  # holds no images
    shutil.rmtree(tmp_path / "photos" / "tables")
    assert sorted((tmp_path / "photos").rglob("*")) == before
    export_run(run, name, tmp_path / "photos-sorted")


ODD = ["export.csv", "..", "é" * 200, "hot/cold", "Hot/cold", ".export.tmp", "dot. ", "EXPORT.csv"]


def recast(run: Run, categories: list[str], folder: Path) -> None:
    """Give a run of one image per category."""
    row = run.assignments[0]
    category = run.categories[0]
    paths = [f"{i}.png" for i in range(len(categories))]
    for path in paths:
        (folder / path).write_bytes(path.encode())
    both = [(i, name, path) for i, (name, path) in enumerate(zip(categories, paths, strict=True))]
    run.write_assignments(
        replace(row, path=path, label_given="", category=name, category_id=i)
        for i, name, path in both
    )
    run.write_categories(replace(category, category_id=i, category=name) for i, name, _ in both)


@pytest.mark.parametrize("is_there", [True, False])
def test_an_export_that_fails_leaves_nothing_behind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """The last image is gone; or the disk is full when the table is written."""
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    (tmp_path / "photos" / "z.png").rename(tmp_path / "z.png")
    for name in ("imagefolder", "hf", "fiftyone"):
        with pytest.raises(DataError, match="is not there any more"):
            export_run(run, name, out)
    (tmp_path / "z.png").rename(tmp_path / "photos" / "z.png")

    def full(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shoal.discovery.export.imagefolder.write_text", full)
        with pytest.raises(OSError, match="No space"):
            export_run(run, "imagefolder", out)
    assert out.exists() == is_there
    assert not is_there or not list(out.iterdir())
    (tmp_path / "out" / ".export.tmp" / "half").mkdir(parents=True)  # of an export that was killed
    assert not [*export_run(run, "imagefolder", out).folder.glob(".*")]


def test_a_folder_called_metadata_csv_has_no_place_in_a_hugging_face_folder(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "photos" / "metadata.csv").mkdir()
    recast(run, ["cat"], tmp_path / "photos" / "metadata.csv")
    run.write_assignments([replace(run.assignments[0], path="metadata.csv/0.png")])
    with pytest.raises(DataError, match=r"metadata\.csv/0\.png: .* export to imagefolder instead"):
        export_run(run, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("csv", {"linking": "copy"}, "csv holds no images; leave out --copy"),
        ("projector", {"images": "photos"}, "leave out --images"),
        ("labelstudio", {"given_labels": "predicted"}, "leave out --given-labels"),
    ],
)
def test_what_a_format_has_no_use_for_is_refused(
    run: Run, tmp_path: Path, name: str, options, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        export_run(run, name, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
