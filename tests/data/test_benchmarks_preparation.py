"""Verifying and preparing: what is there, what is missing, and unpacking without harm."""

import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.data.benchmarks import BENCHMARKS, load_split, prepare, read_benchmark, verify
from shoal.data.benchmarks.archives import find_damage, unpack
from shoal.data.readers import read_collection
from shoal.errors import DataError


def write_tar(file: Path, members: dict[str, bytes]) -> Path:
    mode = "w:gz" if file.suffix in (".gz", ".tgz") else "w"
    with tarfile.open(file, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


def write_zip(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def cub_members(n_train: int, n_test: int) -> dict[str, bytes]:
    """CUB's official tree with as many images as asked for, spread over the 200 classes."""
    classes = load_split("cub").class_names
    assert classes is not None
    rows: dict[str, list[object]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    for i in range(n_train + n_test):
        rows["images"].append(f"{classes[i % 200]}/bird_{i}.jpg")
        rows["image_class_labels"].append(i % 200 + 1)
        rows["train_test_split"].append(int(i < n_train))
    files = {**rows, "classes": list(classes)}
    lists = {
        f"CUB_200_2011/{name}.txt": "".join(
            f"{i + 1} {value}\n" for i, value in enumerate(values)
        ).encode()
        for name, values in files.items()
    }
    return lists | {f"CUB_200_2011/images/{name}": b"" for name in rows["images"]}


def files_under(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def cub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A downloaded CUB of two training images and one test image per class, and a catalog that
    expects just that."""
    small = replace(BENCHMARKS["cub"], n_images=400, n_test=200, n_labeled=100, n_unlabeled=300)
    monkeypatch.setitem(BENCHMARKS, "cub", small)
    write_tar(tmp_path / "CUB_200_2011.tgz", cub_members(400, 200))
    return tmp_path


def test_a_downloaded_archive_is_unpacked_indexed_and_complete(cub: Path) -> None:
    found = prepare("cub", cub)
    assert found.to_fetch == ()
    assert found.is_complete
    assert [count.found for count in found.parts[0].counts] == [400, 200, 100, 300]
    assert files_under(cub) == set(cub_members(400, 200)) | {"CUB_200_2011.tgz", "cub-train.csv"}


def test_preparing_again_changes_nothing(cub: Path) -> None:
    prepare("cub", cub)
    before = {path: path.stat().st_mtime_ns for path in cub.rglob("*")}
    prepare("cub", cub)
    assert {path: path.stat().st_mtime_ns for path in cub.rglob("*")} == before


def test_the_index_is_a_table_that_reads_back_as_the_same_collection(cub: Path) -> None:
    prepare("cub", cub)
    benchmark = read_benchmark("cub", cub).collection
    table = read_collection(cub / "cub-train.csv")
    assert [str(table.source(i)) for i in range(len(table))] == [
        str(benchmark.source(i)) for i in range(len(table))
    ]
    classes = [(*found.classes, "") for found in (table, benchmark)]
    assert [classes[0][label] for label in table.labels] == [
        classes[1][label] for label in benchmark.labels
    ]


def test_missing_files_are_listed_one_by_one(tmp_path: Path) -> None:
    unpack(write_tar(tmp_path / "CUB_200_2011.tgz", cub_members(400, 200)), tmp_path)
    (tmp_path / "CUB_200_2011/images.txt").rename(tmp_path / "elsewhere.txt")
    found = verify("cub", tmp_path)
    assert found.parts[0].missing == ("images.txt",)
    assert "classes.txt" in found.parts[0].present
    (tmp_path / "elsewhere.txt").rename(tmp_path / "CUB_200_2011/images.txt")
    lost = next((tmp_path / "CUB_200_2011/images").rglob("bird_3.jpg"))
    lost.unlink()
    found = verify("cub", tmp_path)
    assert found.parts[0].missing == (f"images/{lost.parent.name}/bird_3.jpg",)
    assert found.parts[1].missing == ()
    assert not found.is_complete


def test_the_imagenet_tar_of_tars_yields_only_the_100_synsets(tmp_path: Path) -> None:
    inner = {}
    for synset in ("n01443537", "n99999999"):
        write_tar(tmp_path / f"{synset}.tar", {f"{synset}_1.JPEG": b"", f"{synset}_2.JPEG": b""})
        inner[f"{synset}.tar"] = (tmp_path / f"{synset}.tar").read_bytes()
        (tmp_path / f"{synset}.tar").unlink()
    write_tar(tmp_path / "ILSVRC2012_img_train.tar", inner)
    found = prepare("imagenet100", tmp_path)
    kept = {"train/n01443537/n01443537_1.JPEG", "train/n01443537/n01443537_2.JPEG"}
    assert files_under(tmp_path) == kept | {"ILSVRC2012_img_train.tar"}
    assert len(found.parts[0].missing) == 99


@pytest.mark.parametrize("name", ["../out.txt", "/out.txt", "a/../../out.txt"])
def test_a_zip_that_leads_out_of_the_folder_writes_nothing_there(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_zip(root / "bad.zip", {"fine.txt": b"1", name: b"2"})
    unpack(root / "bad.zip", root)
    assert not (tmp_path / "out.txt").exists()
    assert not Path("/out.txt").exists()


def test_a_link_in_a_zip_is_not_made(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    unpack(tmp_path / "bad.zip", tmp_path)
    assert not (tmp_path / "link").is_symlink()


def test_a_tar_that_leads_out_of_the_folder_is_refused_whole(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_tar(root / "bad.tar.gz", {"fine.txt": b"1", "../out.txt": b"2"})
    with pytest.raises(DataError):
        unpack(root / "bad.tar.gz", root)
    assert files_under(tmp_path) == {"root/bad.tar.gz"}


def zeroed(file: Path, start: int, count: int) -> Path:
    content = bytearray(file.read_bytes())
    content[start : start + count] = bytes(count)
    file.write_bytes(content)
    return file


NOISE = np.random.default_rng(0).bytes(400_000)
"""Bytes that gzip cannot make fewer."""


def test_a_zip_read_in_place_is_not_complete_when_the_bytes_of_its_images_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images of each class, 40 bytes each; the directory of the archive, at its end, is
    whole."""
    small = replace(BENCHMARKS["cub"], n_images=400, n_test=200, n_labeled=100, n_unlabeled=300)
    monkeypatch.setitem(BENCHMARKS, "cub", small)
    classes = load_split("cub").class_names or ()
    for part, count in (("train", 2), ("test", 1)):
        names = [f"{part}/{c}/{c}_{i}.png" for c in classes for i in range(count)]
        write_zip(
            tmp_path / f"cub200-{part}.zip", {name: name.encode().ljust(40, b"-") for name in names}
        )
    assert verify("cub", tmp_path).is_complete
    with zipfile.ZipFile(tmp_path / "cub200-train.zip") as archive:
        third = archive.infolist()[2]
    zeroed(tmp_path / "cub200-train.zip", third.header_offset + 30 + len(third.filename), 20)
    found = verify("cub", tmp_path)
    assert not found.is_complete
    assert third.filename in found.parts[0].problem
    assert found.parts[1].is_complete


def test_a_downloaded_archive_that_is_not_unpacked_is_whole_or_damaged(tmp_path: Path) -> None:
    file = write_tar(tmp_path / "CUB_200_2011.tgz", {"CUB_200_2011/images/x": NOISE})
    assert [archive["problem"] for archive in verify("cub", tmp_path).downloaded] == [""]
    zeroed(file, 200_000, 1_000)
    found = verify("cub", tmp_path)
    assert found.to_dict()["downloaded"][0]["problem"] == found.downloaded[0]["problem"] != ""
    (tmp_path / "CUB_200_2011").mkdir()
    assert verify("cub", tmp_path).downloaded == (), "what is read is the folder"


def test_a_plain_tar_has_no_checksum_of_its_members_but_must_end_where_it_ends(
    tmp_path: Path,
) -> None:
    file = write_tar(tmp_path / "some.tar", {f"{i}": NOISE for i in range(8)})
    assert find_damage(file) == ""
    whole = file.read_bytes()
    file.write_bytes(whole[:1_000_000])
    assert find_damage(file)
    file.write_bytes(whole)
    zeroed(file, 512 + 400_384, 512 + 512)  # the header of the second member: zeros end a tar
    assert find_damage(file)
    file.write_bytes(b"no archive at all")
    assert find_damage(file)


@pytest.mark.parametrize("start", [200_000, -8])
def test_a_gzipped_tar_with_wrong_bytes_inside_or_a_wrong_checksum_is_refused(
    tmp_path: Path, start: int
) -> None:
    file = write_tar(tmp_path / "CUB_200_2011.tgz", {"CUB_200_2011/images/x": NOISE})
    zeroed(file, start % file.stat().st_size, 4)
    with pytest.raises(DataError) as refused:
        prepare("cub", tmp_path)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["CUB_200_2011.tgz"]


def test_what_is_there_is_never_overwritten_by_an_archive(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("old")
    archive = write_zip(
        tmp_path / "some.zip", {"kept.txt": b"from the archive", "added.txt": b"added"}
    )
    assert unpack(archive, tmp_path) == ("added.txt",)
    assert (tmp_path / "kept.txt").read_text() == "old"
    assert files_under(tmp_path) == {"kept.txt", "added.txt", "some.zip"}
