"""A watched folder: every image is assigned once, when its file is complete."""

import os
import shutil
from pathlib import Path

import pytest

from shoal.discovery.assign import Assigner, Watch
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def photos(same_photos):
    return same_photos


@pytest.fixture
def assigner(discover_same) -> Assigner:
    return Assigner(Run(discover_same()), device="cpu")


@pytest.mark.slow
def test_each_image_is_assigned_once_after_two_polls_without_a_change(
    photos, assigner, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    watch = Watch(assigner, inbox)
    names = sorted(photos.truth)
    shutil.copy(photos.folder / names[0], inbox)
    assert watch.poll() == ([], {})  # the file may still be incomplete
    rows, _ = watch.poll()
    assert [row.path for row in rows] == [names[0]]
    assert rows[0].category_id == assigner.run.assignments[0].category_id
    assert watch.poll() == ([], {})
    (inbox / names[1]).write_bytes((photos.folder / names[1]).read_bytes()[:50])
    watch.poll()
    shutil.copy(photos.folder / names[1], inbox)  # the file is now complete
    assert watch.poll() == ([], {})
    assert [row.path for row in watch.poll()[0]] == [names[1]]
    os.utime(inbox / names[0], (1, 1))  # as if replaced by a file of the same size
    watch.poll()
    assert [row.path for row in watch.poll()[0]] == [names[0]]


def test_an_unreadable_image_is_reported_and_watching_continues(
    photos, assigner, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    watch = Watch(assigner, inbox)
    (inbox / "broken.png").write_bytes(b"no image")
    watch.poll()
    rows, skipped = watch.poll()
    assert (rows, list(skipped)) == ([], ["broken.png"])
    good = sorted(photos.truth)[0]
    shutil.copy(photos.folder / good, inbox)
    watch.poll()
    assert [row.path for row in watch.poll()[0]] == [good]
