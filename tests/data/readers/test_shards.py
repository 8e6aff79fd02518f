"""Tar and parquet shards give the same collection as their folder; damaged ones are refused."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.errors import DataError
from stores import add_member, image_names, write_parquets, write_tars

Make = Callable[[list[str]], Path]
NAMES = [f"{kind}/{i:02d}.png" for kind in ("cat", "dog") for i in range(5)]
LABELS = {"cat/00.png": "tabby", "cat/01.png": "tabby", "dog/00.png": "poodle"}
SIZE = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_tar(file: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(file, "w") as shard:
        for name, content in members:
            add_member(shard, name, content)
    return file


def facts(found):
    return found.names, found.labels.tolist(), found.classes


@pytest.mark.parametrize("kind", ["tar", pytest.param("parquet", marks=pytest.mark.slow)])
def test_shards_are_the_same_collection_as_their_folder(
    kind: str, make_images: Make, tmp_path: Path
) -> None:
    folder = make_images(NAMES)
    expected = read_collection(folder, LABELS)
    write = write_tars if kind == "tar" else write_parquets
    shards = read_collection(write(folder, LABELS, tmp_path / "shards"))
    assert facts(shards) == facts(expected)
    pixels = load_pixels(shards, SIZE, n_workers=1)
    np.testing.assert_array_equal(pixels[:], load_pixels(expected, SIZE, n_workers=1)[:])
    some = load_pixels(
        shards.subset([1, 4, 9]), 4, n_workers=1
    )  # at another size, so that images are decoded, not read from the cache
    np.testing.assert_array_equal(
        some[:], load_pixels(expected.subset([1, 4, 9]), 4, n_workers=1)[:]
    )


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_folder_of_shards_and_one_of_them_are_collections_too(
    kind: str, make_images: Make, tmp_path: Path
) -> None:
    folder = make_images(NAMES)
    (write_tars if kind == "tar" else write_parquets)(folder, LABELS, tmp_path / "shards")
    assert facts(read_collection(tmp_path / "shards")) == facts(read_collection(folder, LABELS))
    one = sorted((tmp_path / "shards").iterdir())[0]
    assert read_collection(one).names == tuple(image_names(folder)[0::2])


def test_labels_of_a_table_count_instead_of_those_in_shards(
    make_images: Make, tmp_path: Path
) -> None:
    pattern = write_tars(make_images(NAMES), LABELS, tmp_path / "shards")
    assert read_collection(pattern, {"cat/04.png": "lion"}).classes == ("lion",)
    assert read_collection(pattern, False).n_labeled == 0
    assert read_collection(pattern, "folders").classes == ("cat", "dog")
    bare = write_tars(make_images(NAMES), {}, tmp_path / "bare")
    assert read_collection(bare).classes == ("cat", "dog")  # as in the folder itself


def test_labels_may_be_texts_and_json(tmp_path: Path, make_images: Make) -> None:
    data = (make_images(["a.png"]) / "a.png").read_bytes()
    labels = [("a.txt", b"wren\n"), ("b.json", b'{"Label": 3, "other": 1}'), ("c.txt", b"a\ntale")]
    images = [(f"{name}.png", data) for name in ("a", "b", "c", "d.seg")]
    write_tar(tmp_path / "s.tar", *images, *labels, ("d.cls", b"-1"))
    found = read_collection(tmp_path / "s.tar")
    assert (found.classes, found.labels.tolist()) == (("3", "wren"), [1, 0, -1, -1])
    assert read_collection(tmp_path / "s.tar", label_column="other").classes == ("1", "wren")


@pytest.mark.usefixtures("decoded_in_threads")
def test_hostile_members_are_left_out_with_the_reason(tmp_path: Path, make_images: Make) -> None:
    data = (make_images(["a.png"]) / "a.png").read_bytes()
    with tarfile.open(tmp_path / "s.tar", "w") as shard:
        for name in (
            "../out.png",
            "/etc/x.png",
            "a\nb.png",
            "good.png",
            "good.png",
            "./also.png",
            ".hidden.png",
        ):
            add_member(shard, name, data)
        link = tarfile.TarInfo("link.png")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        shard.addfile(link)
    found = read_collection(tmp_path / "s.tar")
    assert found.names == ("also.png", "good.png")
    assert list(found.left_out) == [
        "../out.png",
        "/etc/x.png",
        r"a\nb.png",
        "good.png",
        "link.png",
    ]
    assert len(load_pixels(found, SIZE, n_workers=1)) == 2


@pytest.mark.usefixtures("decoded_in_threads")
def test_the_same_key_in_two_shards_gets_the_name_of_its_shard(
    tmp_path: Path, make_images: Make
) -> None:
    folder = make_images(["a.png", "b.png"])
    for i, name in enumerate(("a.png", "b.png")):
        write_tar(tmp_path / f"s-{i}.tar", ("000.png", (folder / name).read_bytes()))
    found = read_collection(f"{tmp_path}/s-{{0..1}}.tar")
    assert found.names == ("s-0/000.png", "s-1/000.png")
    assert found.n_labeled == 0  # names of shards are not categories
    first, second = load_pixels(found, SIZE, n_workers=1)[:]
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("damage", ["truncated", "header", "zeroed", "cut", "appended"])
@pytest.mark.usefixtures("decoded_in_threads")
def test_a_damaged_tar_shard_is_refused_or_left_out(
    damage: str, make_images: Make, tmp_path: Path
) -> None:
    """tarfile reports neither a damaged header, nor a cut between members, nor an appended second
    tar file."""
    write_tars(make_images(NAMES), {}, tmp_path / "shards", n_shards=2)
    file = tmp_path / "shards" / "photos-000.tar"
    whole = file.read_bytes()
    with tarfile.open(file) as shard:
        at = shard.getmembers()[3].offset
        middle = shard.getmembers()[3].offset_data + 20
    junk = {
        "truncated": whole[:middle],
        "header": whole[:at] + b"\x07" * 512 + whole[at + 512 :],
        "zeroed": whole[:at] + b"\x00" * 512 + whole[at + 512 :],
        "cut": whole[:at],
        "appended": whole + whole,
    }
    file.write_bytes(junk[damage])
    with pytest.raises(DataError, match=r"photos-000.tar.*allow_missing"):
        read_collection(file.parent)
    found = read_collection(file.parent, allow_missing=True)
    assert len(found) == 5
    assert file.name in found.left_out
    assert not load_pixels(found, SIZE, n_workers=1).skipped


@pytest.mark.parametrize(
    "label",
    [
        ("a.json", b'{"label": "a"'),
        ("a.json", b'{"label": ["x", "y"]}'),
        ("a.json", b'{"label": "\\ud800"}'),
        ("a.json", b"[" * 100_000),
        ("a.cls", b"\xff\xfe"),
        ("a.cls", b"cat\ndog"),
    ],
)
def test_a_label_in_a_shard_that_cannot_be_read_is_refused(
    label, tmp_path: Path, make_images: Make
) -> None:
    data = (make_images(["a.png"]) / "a.png").read_bytes()
    stray = ("README.txt", b"\xe9t\xe9")  # belongs to no image
    other = [("./sub/./b.png", data), ("sub/b.cls", b"\xef\xbb\xbfwren")]
    write_tar(tmp_path / "s.tar", ("a.png", data), label, *other, stray)
    with pytest.raises(DataError, match=r"s.tar"):
        read_collection(tmp_path / "s.tar")
    write_tar(tmp_path / "t.tar", *other, stray)
    found = read_collection(f"{tmp_path}/*.tar", allow_missing=True)
    assert (found.names, found.classes, found.labels.tolist()) == (("sub/b.png",), ("wren",), [0])
    assert "a.png" in found.left_out["s.tar"]


def test_two_labels_of_one_image_are_refused(tmp_path: Path, make_images: Make) -> None:
    data = (make_images(["a.png"]) / "a.png").read_bytes()
    for second in (b"owl", b"wren"):
        write_tar(tmp_path / "s.tar", ("a.png", data), ("a.cls", b"wren"), ("a.cls", second))
        if second == b"owl":
            with pytest.raises(DataError, match=r"label of a.png"):
                read_collection(tmp_path / "s.tar")
    assert read_collection(tmp_path / "s.tar").classes == ("wren",)


def test_a_truncated_parquet_shard_is_left_out(make_images: Make, tmp_path: Path) -> None:
    folder = write_parquets(make_images(NAMES), LABELS, tmp_path / "shards")
    second = folder / "train-00001-of-00002.parquet"
    second.write_bytes(second.read_bytes()[:-100])
    with pytest.raises(DataError, match="allow_missing=True"):
        read_collection(f"{folder}/*.parquet")
    found = read_collection(f"{folder}/*.parquet", allow_missing=True)
    assert len(found) == 5
    assert second.name in found.left_out
    with pytest.raises(DataError, match=second.name):
        read_collection(second)


@pytest.mark.usefixtures("decoded_in_threads")
def test_rows_without_paths_of_their_own_are_named_by_their_number(
    make_images: Make, tmp_path: Path
) -> None:
    import pyarrow
    import pyarrow.parquet

    data = (make_images(["a.png"]) / "a.png").read_bytes()
    rows = [
        {"image": {"bytes": data, "path": "../x.png"}, "label": "a"},
        {"image": {"bytes": None, "path": None}},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "s.parquet")
    found = read_collection(tmp_path / "s.parquet")
    assert (found.names, found.classes) == (("00000000", "00000001"), ("a",))
    pixels = load_pixels(found, SIZE, n_workers=1)
    assert list(pixels.skipped) == ["00000001"]


def test_a_shard_is_indexed_once_until_it_changes(make_images: Make, tmp_path: Path) -> None:
    folder = make_images(NAMES)
    pattern = write_tars(folder, LABELS, tmp_path / "shards", n_shards=1)
    before = facts(read_collection(pattern))
    file = tmp_path / "shards" / "photos-000.tar"
    state = file.stat()
    file.write_bytes(bytes(state.st_size))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert facts(read_collection(pattern)) == before  # the shard itself was not read
    write_tars(folder, {"cat/00.png": "lion"}, tmp_path / "shards", n_shards=1)
    assert read_collection(pattern).classes == ("lion",)
