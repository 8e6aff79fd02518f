"""`run.predict` of a list returns a row per entry, in the order and with the paths of the list."""

import io
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.errors import DataError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(discover_same, photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run of the photos with a truncated image; the working directory contains `photos`."""
    monkeypatch.chdir(tmp_path)
    made = shoal.load(discover_same())
    (tmp_path / "odd").mkdir()
    whole = (photos.folder / min(photos.truth)).read_bytes()
    (tmp_path / "odd" / "cut.png").write_bytes(whole[: len(whole) // 3])
    return made


def test_listed_paths_have_rows_in_order(run, photos, caplog) -> None:
    """In reverse order, with a duplicate, an absolute path and an unreadable image."""
    pandas = pytest.importorskip("pandas")
    first, second, *_, last = sorted(photos.truth)
    paths = [f"photos/{last}", f"photos/{first}", "odd/cut.png", f"./photos/{last}"]
    paths += [str(photos.folder / second), paths[0]]
    with caplog.at_level(logging.WARNING, logger="shoal"):
        rows = run.predict(paths, device="cpu")
    assert [row.path for row in rows] == paths
    found = {row.path: row.category for row in run.assignments}
    expected = [found[Path(path).name] if path != "odd/cut.png" else "" for path in paths]
    assert [row.category for row in rows] == expected
    unreadable = rows[2]
    assert (unreadable.category_id, unreadable.is_novel, unreadable.status) == (
        -1,
        False,
        "unreadable",
    )
    assert np.isnan(unreadable.outlier_score)
    assert [row.status for row in rows].count("predicted") == 5
    assert "note: odd/cut.png: cannot be decoded" in caplog.text
    frame = pandas.DataFrame({"path": paths}, index=range(5, 11))
    assigner = run.assigner(device="cpu")
    for same in (frame, frame["path"], np.array(paths), tuple(map(Path, paths))):
        assert [row.category for row in assigner.assign(same)[0]] == expected


def test_missing_paths_and_folders_in_a_list_are_named(run, photos) -> None:
    there = [f"photos/{name}" for name in sorted(photos.truth)]
    with pytest.raises(DataError, match=r"1 of 61 .*path 60: photos/nope.png"):
        run.predict([*there, "photos/nope.png"], device="cpu")
    with pytest.raises(DataError, match=r"1 of 2 .*path 1: photos"):
        run.predict([there[0], "photos"], device="cpu")
    with pytest.raises(DataError, match="path 1: found"):
        run.predict([there[0], np.zeros((4, 4, 3), dtype=np.uint8)], device="cpu")


def test_images_in_memory_have_rows_in_order_including_unreadable_ones(run, photos) -> None:
    names = sorted(photos.truth, reverse=True)[:3]
    found = {row.path: row.category for row in run.assignments}
    with (
        Image.open(photos.folder / names[0]) as first,
        Image.open(photos.folder / names[1]) as second,
    ):
        array = np.asarray(first)
        cut = Image.open(io.BytesIO(Path("odd/cut.png").read_bytes()))
        rows = run.predict([array, cut, second, array], device="cpu")
    assert [row.path for row in rows] == [f"image-{i:06d}" for i in range(4)]
    assert [row.category for row in rows] == [found[names[0]], "", found[names[1]], found[names[0]]]
    assert [row.status for row in rows] == ["predicted", "unreadable", "predicted", "predicted"]
    assert [row.status for row in run.predict(["odd/cut.png"], device="cpu")] == ["unreadable"]
