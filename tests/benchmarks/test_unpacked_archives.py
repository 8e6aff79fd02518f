"""How the scripts of benchmarks/ unpack archives of images."""

import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def unpack(load_script):
    return load_script("accuracy").unpack


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
def test_classes_are_unpacked_as_folders_below_the_name_of_the_archive(
    unpack, archive: Path, tmp_path: Path, limit, wanted
) -> None:
    root = unpack(f"{archive}{limit}", tmp_path / "out")
    assert root == tmp_path / "out" / f"birds{limit.replace(':', '-')}"
    assert sorted(str(file.relative_to(root)) for file in root.glob("*/*")) == wanted
    assert (root / "heron" / "1.webp").read_text() == "heron/1.webp"


def test_the_seed_samples_classes_and_an_existing_folder_is_left_unchanged(
    unpack, archive: Path, tmp_path: Path
) -> None:
    sampled = [
        sorted(path.name for path in unpack(str(archive), tmp_path / str(seed), 2, seed).iterdir())
        for seed in range(9)
    ]
    assert {len(classes) for classes in sampled} == {2}
    assert len({tuple(classes) for classes in sampled}) > 1
    (tmp_path / "0" / "birds" / "mark").touch()
    assert (unpack(str(archive), tmp_path / "0", 2, 0) / "mark").exists()
