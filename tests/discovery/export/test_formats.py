"""Every format on a hand-made run: two folders with an image of the same name, and categories that
are not valid file names."""

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
from shoal.report.rendering import category_tree
from shoal.review import verbs
from shoal.review.actions import Action, Group
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import NO_CATEGORY, Assignment, Category, Run

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


def test_imagefolder_contains_each_image_once_in_the_folder_of_its_category(
    run: Run, tmp_path: Path
) -> None:
    """Two cats are named 1.png, so the files of all cats are named by their paths."""
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


def test_original_images_are_unchanged(run: Run, tmp_path: Path) -> None:
    for name in FORMATS:
        if name != "coco":  # it opens the files, which are not valid images
            export_run(run, name, tmp_path / name)
    assert {path: (tmp_path / "photos" / path).read_bytes().decode() for path in IMAGES} == {
        p: p for p in IMAGES
    }
    copied = export_run(run, "imagefolder", tmp_path / "copies", copy=True).folder
    assert not any(file.is_symlink() for file in copied.rglob("*"))


def test_yolo_has_every_fifth_image_of_a_category_for_validation(run: Run, tmp_path: Path) -> None:
    row = run.assignments[0]
    paths = [f"{number}.png" for number in range(11)]
    for path in paths:
        (tmp_path / "photos" / path).touch()
    run.write_assignments(replace(row, path=path) for path in paths)
    out = export_run(run, "yolo", tmp_path / "out").folder
    assert sorted(file.name for file in (out / "val" / "cat").iterdir()) == ["4.png", "9.png"]
    assert len([*(out / "train" / "cat").iterdir()]) == 9


def test_hugging_face_metadata_contains_the_labels(run: Run, tmp_path: Path) -> None:
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


def test_csv_tables_equal_those_of_the_run(run: Run, tmp_path: Path) -> None:
    out = export_run(run, "csv", tmp_path / "out").folder
    for part in ("assignments.csv", "categories.csv"):
        assert (out / part).read_bytes() == (run.path / part).read_bytes()


def test_spreadsheets_escape_formulas_and_csv_keeps_names(run: Run, tmp_path: Path) -> None:
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
    plain = export_run(run, "csv", tmp_path / "csv").folder
    assert (plain / "assignments.csv").read_bytes() == (run.path / "assignments.csv").read_bytes()


@pytest.mark.parametrize("name", ["labelstudio", "imagefolder", "hf", "fiftyone", "coco", "yolo"])
def test_paths_outside_the_collection_are_refused_by_every_format(
    run: Run, tmp_path: Path, name: str
) -> None:
    run.write_assignments(
        [replace(run.assignments[0], path="../../etc/passwd"), *run.assignments[1:]]
    )
    with pytest.raises(DataError, match="leads out of"):
        export_run(run, name, tmp_path / "out")


def test_label_studio_has_a_task_per_image_and_a_choice_per_category(
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
def test_labels_replace_categories(run: Run, tmp_path: Path, name: str, file: str) -> None:
    """y/2.png is labeled cat and predicted as hot/cold."""
    run.write_assignments(
        replace(row, label_given="cat" if row.path == "y/2.png" else "") for row in run.assignments
    )
    kept = export_run(run, name, tmp_path / "kept")
    assert kept.n_disagreeing == 1
    assert "hot/cold" not in (kept.folder / file).read_text(encoding="utf-8")
    if name == "csv":
        sizes = {
            row["category"]: (row["size"], row["n_labeled"])
            for row in rows(kept.folder / "categories.csv")
        }
        assert sizes == {"cat": ("3", "1"), "hot/cold": ("0", "0"), 'tab\t"&<': ("1", "0")}
        assert rows(kept.folder / file)[2]["category_id"] == "0"
    assert run.assignments[2].category == "hot/cold"  # the run itself is unchanged


def test_split_and_rejected_images_are_exported_as_reviewed(run: Run, tmp_path: Path) -> None:
    """x/1.png, y/1.png and y/2.png are labeled cat; the third is in another category and rejected
    from it."""
    given = {"x/1.png": "cat", "y/1.png": "cat", "y/2.png": "cat"}
    run.write_assignments(
        replace(row, label_given=given.get(row.path, "")) for row in run.assignments
    )
    review = Review(Run(run.path))
    review.act(verbs.split, "cat", {"lynx": ["x/1.png"]}, by="ann")
    review.act(verbs.decide, "reject", None, ["y/2.png"], by="ann")
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
    output = [task.get("annotations") for task in json.loads(tasks.read_text("utf-8"))]
    assert [found and found[0]["result"][0]["value"]["choices"] for found in output] == [
        ["lynx"],
        ["cat"],
        ["cat"],
        None,
    ]
    review.act(verbs.decide, "reject", None, ["y/1.png"], by="ann")
    again = export_run(ReviewedRun.open(run.path), "csv", tmp_path / "again")
    assert rows(again.folder / "assignments.csv")[1]["category"] == ""


def test_notes_have_a_table_of_their_own(run: Run, tmp_path: Path) -> None:
    """Every format has this table, and what a spreadsheet would run as a formula is escaped."""
    review = Review(Run(run.path))
    row = review.state.row_of["y/1.png"]
    for category, images, text in (
        (NO_CATEGORY, [row], "=1+1 #blurred #wing"),
        (int(review.state.category[row]), [], "ask ann"),
    ):
        group = Group(category=category, rows=np.array(images, dtype=np.int64))
        action = Action(kind="note", category=category, groups=(group,), text=text)
        review.act(lambda _, action=action: action)
    for name in ("csv", "imagefolder"):
        out = export_run(ReviewedRun.open(run.path), name, tmp_path / name).folder
        category = review.state.name(int(review.state.category[row]))
        assert [tuple(line.values()) for line in rows(out / "notes.csv")] == [
            ("", category, "ask ann", ""),
            ("y/1.png", category, "'=1+1 #blurred #wing", "#blurred #wing"),
        ]


def test_label_studio_has_predictions_and_annotations(run: Run, tmp_path: Path) -> None:
    """z.png has no prediction: the move empties its predicted category, which is no longer a
    choice."""
    review = Review(Run(run.path))
    review.act(verbs.move, ["y/1.png", "z.png"], "hot/cold", by="ann")
    review.act(verbs.rename, "cat", "lynx", by="ann")
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


def test_fiftyone_has_numbered_files_with_labels(run: Run, tmp_path: Path) -> None:
    out = export_run(run, "fiftyone", tmp_path / "out").folder
    labels = json.loads((out / "labels.json").read_text(encoding="utf-8"))["labels"]
    for row in rows(out / "paths.csv"):
        assert (out / row["file"]).read_bytes().decode() == row["path"]
        assert labels[Path(row["file"]).stem] == {"label": IMAGES[row["path"]], "confidence": 0.75}
    assert len(labels) == 4


def test_projector_files_have_a_line_per_image(run: Run, tmp_path: Path) -> None:
    out = export_run(run, "projector", tmp_path / "out").folder
    vectors = np.loadtxt(out / "vectors.tsv", delimiter="\t")
    np.testing.assert_allclose(vectors, run.array("embeddings"))
    lines = [
        line.split("\t") for line in (out / "metadata.tsv").read_text(encoding="utf-8").splitlines()
    ]
    assert lines[0][:2] == ["path", "category"]
    assert [line[0] for line in lines[1:]] == list(IMAGES)
    assert lines[4][1] == 'tab "&<'  # this format cannot contain tabs
    assert {len(line) for line in lines} == {8}


def test_the_tree_is_exported_as_newick_and_as_pictures(run: Run, tmp_path: Path) -> None:
    export_run(run, "newick", tmp_path / "newick")
    tree = category_tree(ReviewedRun.of(run))
    assert (tmp_path / "newick" / "tree.nwk").read_text() == f"{tree.newick()}\n"
    export_run(run, "dendrogram", tmp_path / "dendrogram")
    files = sorted(file.name for file in (tmp_path / "dendrogram").iterdir())
    assert files == ["dendrogram.png", "dendrogram.svg"]


def test_after_a_merge_parents_are_those_of_the_new_tree(run: Run, tmp_path: Path) -> None:
    Review(run).act(verbs.merge, [row.category for row in run.categories[:2]])
    export_run(run, "csv", tmp_path / "csv")
    tree = category_tree(ReviewedRun.of(run))
    with (tmp_path / "csv" / "categories.csv").open(encoding="utf-8", newline="") as file:
        parents = {row["category"]: row["parent"] for row in csv.DictReader(file)}
    assert parents == tree.parent_names
    assert set(parents.values()) <= {*tree.node_names}


def test_invalid_exports_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="huggingface"):
        export_run(run, "huggingface", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        export_run(run, "csv", tmp_path / "full")
    for target, words in (
        ("mine.txt", "mine.txt: cannot be written"),
        ("mine.txt/out", "mine.txt/out: cannot be written"),
    ):
        with pytest.raises(UsageError, match=words):
            export_run(run, "csv", tmp_path / "full" / target)
    run.write_json("provenance", {**run.provenance, "root": ""})
    with pytest.raises(UsageError, match="cannot be linked"):
        export_run(run, "imagefolder", tmp_path / "out")


@pytest.mark.parametrize("name", ["imagefolder", "hf", "fiftyone"])
def test_exporting_into_the_folder_of_the_images_is_refused(
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
        with pytest.raises(UsageError, match="twice"):
            export_run(run, name, out)
    export_run(run, "csv", tmp_path / "photos" / "tables")  # this format contains no images
    shutil.rmtree(tmp_path / "photos" / "tables")
    assert sorted((tmp_path / "photos").rglob("*")) == before
    export_run(run, name, tmp_path / "photos-sorted")


def recast(run: Run, categories: list[str], folder: Path) -> None:
    """Return a run with one image per category."""
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
def test_a_failed_export_leaves_no_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """The last image is missing, or the disk is full when the table is written."""
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    (tmp_path / "photos" / "z.png").rename(tmp_path / "z.png")
    for name in ("imagefolder", "hf", "fiftyone"):
        with pytest.raises(DataError, match="does not exist"):
            export_run(run, name, out)
    (tmp_path / "z.png").rename(tmp_path / "photos" / "z.png")

    def full(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shoal.discovery.export.formats.write_text", full)
        with pytest.raises(OSError, match="No space"):
            export_run(run, "imagefolder", out)
    assert out.exists() == is_there
    assert not is_there or not list(out.iterdir())
    (tmp_path / "out" / ".export.tmp" / "half").mkdir(parents=True)  # left by a killed export
    assert not [*export_run(run, "imagefolder", out).folder.glob(".*")]


def test_an_image_in_the_place_of_a_table_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "photos" / "metadata.csv").mkdir()
    recast(run, ["cat"], tmp_path / "photos" / "metadata.csv")
    run.write_assignments([replace(run.assignments[0], path="metadata.csv/0.png")])
    with pytest.raises(UsageError, match=r"metadata\.csv"):
        export_run(run, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
