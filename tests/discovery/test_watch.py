"""A watched folder: every image once, when it is complete."""

import os
import shutil
from pathlib import Path

import pytest

from shoal.discovery.assign import Assigner, Watch
from shoal.errors import DataError
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def photos(same_photos):
    return same_photos


@pytest.fixture
def assigner(discover_same) -> Assigner:
    return Assigner(Run(discover_same()), device="cpu")


@pytest.mark.slow
def test_each_image_is_assigned_once_when_two_looks_find_it_the_same(
    photos, assigner, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    watch = Watch(assigner, inbox)
    names = sorted(photos.truth)
    shutil.copy(photos.folder / names[0], inbox)
    assert watch.poll() == ([], ())  # it may still be growing
    rows, _ = watch.poll()
    assert [row.path for row in rows] == [names[0]]
    assert rows[0].category_id == assigner.run.assignments[0].category_id
    assert watch.poll() == ([], ())
    (inbox / names[1]).write_bytes((photos.folder / names[1]).read_bytes()[:50])
    watch.poll()
    shutil.copy(photos.folder / names[1], inbox)  # the rest of it arrives
    assert watch.poll() == ([], ())
    assert [row.path for row in watch.poll()[0]] == [names[1]]
    os.utime(inbox / names[0], (1, 1))  # replaced by another of the same size
    watch.poll()
    assert [row.path for row in watch.poll()[0]] == [names[0]]


def test_a_broken_image_is_named_and_stops_nothing(photos, assigner, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    watch = Watch(assigner, inbox)
    (inbox / "broken.png").write_bytes(b"no image")
    watch.poll()
    rows, skipped = watch.poll()
    assert (rows, [image.name for image in skipped]) == ([], ["broken.png"])
    good = sorted(photos.truth)[0]
    shutil.copy(photos.folder / good, inbox)
    watch.poll()
    assert [row.path for row in watch.poll()[0]] == [good]


def test_a_folder_that_is_not_there_is_refused(assigner, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        Watch(assigner, tmp_path / "nowhere")
