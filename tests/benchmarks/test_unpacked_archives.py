"""Archives of images, as the scripts of benchmarks/ unpack them."""

import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def unpack(load_script):
    return load_script("answers").unpack


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "birds.zip", "w") as written:
        for name in ("heron/1.webp", "heron/2.webp", "gull/1.webp", "tern/1.webp", "tern/note.txt"):
            written.writestr(f"train/{name}", name)
    return tmp_path / "birds.zip"


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        ("", ["gull/1.webp", "heron/1.webp", "heron/2.webp", "tern/1.webp"]),
        (":1", ["gull/1.webp", "heron/1.webp", "tern/1.webp"]),
    ],
)
def test_classes_are_folders_in_one_named_as_the_archive(
    unpack, archive: Path, tmp_path: Path, limit, wanted
) -> None:
    root = unpack(f"{archive}{limit}", tmp_path / "out")
    assert root == tmp_path / "out" / f"birds{limit.replace(':', '-')}"
    assert sorted(str(file.relative_to(root)) for file in root.glob("*/*")) == wanted
    assert (root / "heron" / "1.webp").read_text() == "heron/1.webp"


def test_classes_are_drawn_by_the_seed_and_a_folder_that_is_there_is_left(
    unpack, archive: Path, tmp_path: Path
) -> None:
    drawn = [
        sorted(one.name for one in unpack(str(archive), tmp_path / str(seed), 2, seed).iterdir())
        for seed in range(9)
    ]
    assert {len(kinds) for kinds in drawn} == {2}
    assert len({tuple(kinds) for kinds in drawn}) > 1
    (tmp_path / "0" / "birds" / "mark").touch()
    assert (unpack(str(archive), tmp_path / "0", 2, 0) / "mark").exists()
