"""Each benchmark is read from a small stand-in with its official layout: all classes, a few images
of each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from shoal.data.benchmarks import load_split, read_benchmark
from shoal.data.benchmarks.benchmark import Part, known_novel_split
from shoal.errors import DataError


@dataclass(frozen=True)
class StandIn:
    """The content of a stand-in: per part, image names in official order, official class ids."""

    root: Path
    names: dict[Part, list[str]]
    class_ids: dict[Part, list[int]]


# images per class
N_TRAIN = 3
N_TEST = 1


def names_of(name: str) -> tuple[str, ...]:
    class_names = load_split(name).class_names
    assert class_names is not None
    return class_names


def shuffled_ids(n_classes: int, n_each: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(n_classes), n_each)).tolist()


def touch(root: Path, names: list[str]) -> None:
    for folder in {(root / name).parent for name in names}:
        folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / name).touch()


def write_bins(
    root: Path, files: list[str], class_ids: list[int], label_bytes: Callable[[int], list[int]]
) -> None:
    """In record i, every red byte is i, every green byte is its class, and blue is a ramp along
    each row."""
    planes = np.zeros((len(class_ids), 3, 32, 32), dtype=np.uint8)
    planes[:, 0] = np.arange(len(class_ids)).reshape(-1, 1, 1) % 256
    planes[:, 1] = np.array(class_ids).reshape(-1, 1, 1)
    planes[:, 2] = np.arange(32)
    labels = np.array([label_bytes(i) for i in class_ids], dtype=np.uint8)
    records = np.hstack([labels, planes.reshape(len(class_ids), -1)])
    root.mkdir(parents=True, exist_ok=True)
    for file, part in zip(files, np.array_split(records, len(files)), strict=True):
        part.tofile(root / file)


def make_cifar(root: Path, name: str) -> StandIn:
    is_100 = name == "cifar100"
    home = root / ("cifar-100-binary" if is_100 else "cifar-10-batches-bin")
    n_classes = 100 if is_100 else 10
    label_bytes = (lambda i: [i // 5, i]) if is_100 else (lambda i: [i])  # coarse, then fine
    train_files = ["train.bin"] if is_100 else [f"data_batch_{i}.bin" for i in range(1, 6)]
    ids: dict[Part, list[int]] = {
        "train": shuffled_ids(n_classes, 5, 0),
        "test": shuffled_ids(n_classes, 2, 1),
    }
    write_bins(home, train_files, ids["train"], label_bytes)
    write_bins(home, ["test.bin" if is_100 else "test_batch.bin"], ids["test"], label_bytes)
    names: dict[Part, list[str]] = {
        part: [f"{part}-{i:05d}" for i in range(len(ids[part]))] for part in ids
    }
    return StandIn(root, names, ids)


def make_cub(root: Path, _: str) -> StandIn:
    """As in the original, ids continue over both parts, and neither names nor parts are sorted
    within a class."""
    home = root / "CUB_200_2011"
    classes = names_of("cub")
    ids = np.repeat(np.arange(200), N_TRAIN + N_TEST).tolist()
    stems = [f"{classes[c]}/Bird_{(7 * i) % 97:04d}_{i}.jpg" for i, c in enumerate(ids)]
    is_training = [i % 4 != 1 for i in range(len(ids))]
    touch(home / "images", stems)
    rows = {
        "images.txt": stems,
        "image_class_labels.txt": [c + 1 for c in ids],
        "train_test_split.txt": [int(flag) for flag in is_training],
        "classes.txt": classes,
    }
    for file, values in rows.items():
        (home / file).write_text("".join(f"{i + 1} {value}\n" for i, value in enumerate(values)))
    chosen: dict[Part, list[int]] = {
        "train": [i for i, flag in enumerate(is_training) if flag],
        "test": [i for i, flag in enumerate(is_training) if not flag],
    }
    return StandIn(
        root,
        {part: [f"images/{stems[i]}" for i in chosen[part]] for part in chosen},
        {part: [ids[i] for i in chosen[part]] for part in chosen},
    )


def annotations(names: list[str], class_ids: list[int] | None) -> np.ndarray:
    """A devkit table: bounding box, class (absent in the plain test table), file name; MATLAB
    counts from 1."""
    fields = [("bbox_x1", object), *([("class", object)] if class_ids else []), ("fname", object)]
    rows = np.empty((1, len(names)), dtype=fields)
    rows["bbox_x1"][0] = [np.array([[30]], dtype=np.uint8)] * len(names)
    rows["fname"][0] = names
    if class_ids:
        rows["class"][0] = [np.array([[i + 1]], dtype=np.uint8) for i in class_ids]
    return rows


def make_cars(root: Path, _: str) -> StandIn:
    ids: dict[Part, list[int]] = {
        "train": shuffled_ids(196, N_TRAIN, 0),
        "test": shuffled_ids(196, N_TEST, 1),
    }
    files: dict[Part, list[str]] = {
        part: [f"{i + 1:05d}.jpg" for i in range(len(ids[part]))] for part in ids
    }
    (root / "devkit").mkdir(parents=True)
    savemat(
        root / "devkit/cars_meta.mat",
        {"class_names": np.array(names_of("cars"), dtype=object).reshape(1, -1)},
    )
    savemat(
        root / "devkit/cars_train_annos.mat",
        {"annotations": annotations(files["train"], ids["train"])},
    )
    savemat(root / "devkit/cars_test_annos.mat", {"annotations": annotations(files["test"], None)})
    savemat(
        root / "devkit/cars_test_annos_withlabels.mat",
        {"annotations": annotations(files["test"], ids["test"])},
    )
    names: dict[Part, list[str]] = {
        part: [f"cars_{part}/{file}" for file in files[part]] for part in files
    }
    touch(root, names["train"] + names["test"])
    return StandIn(root, names, ids)


def make_aircraft(root: Path, _: str) -> StandIn:
    """variants.txt is in another order than the sorted names, and images_variant_train.txt is
    half of trainval."""
    home = root / "fgvc-aircraft-2013b"
    classes = names_of("aircraft")
    ids: dict[Part, list[int]] = {
        "train": shuffled_ids(100, N_TRAIN, 0),
        "test": shuffled_ids(100, N_TEST, 1),
    }
    numbers = np.random.default_rng(2).permutation(100 * (N_TRAIN + N_TEST)) + 34309
    of_part: dict[Part, list[str]] = {
        "train": [f"{i:07d}" for i in numbers[: len(ids["train"])]],
        "test": [f"{i:07d}" for i in numbers[len(ids["train"]) :]],
    }
    names: dict[Part, list[str]] = {
        part: [f"data/images/{i}.jpg" for i in of_part[part]] for part in of_part
    }
    touch(home, names["train"] + names["test"])
    for file, part, end in (
        ("trainval", "train", None),
        ("train", "train", 150),
        ("test", "test", None),
    ):
        lines = [f"{i} {classes[c]}\n" for i, c in zip(of_part[part], ids[part], strict=True)][:end]
        (home / f"data/images_variant_{file}.txt").write_text("".join(lines))
    (home / "data/variants.txt").write_text("\n".join(reversed(classes)))
    return StandIn(root, names, ids)


def make_folders(
    root: Path, classes: list[str], folders: dict[Part, str], suffix: str, n_each: tuple[int, int]
) -> StandIn:
    names = {}
    ids = {}
    for (part, folder), n in zip(folders.items(), n_each, strict=True):
        names[part] = [f"{folder}/{c}/{c}_{i}{suffix}" for c in classes for i in range(n)]
        ids[part] = np.repeat(np.arange(len(classes)), n).tolist()
        touch(root, names[part])
    return StandIn(root, names, ids)


def make_herbarium(root: Path, _: str) -> StandIn:
    classes = sorted(str(i) for i in range(683))  # text order: 0, 1, 10, 100, …
    return make_folders(
        root, classes, {"train": "small-train", "test": "small-validation"}, ".jpg", (2, 1)
    )


def make_imagenet(root: Path, _: str) -> StandIn:
    return make_folders(
        root,
        list(names_of("imagenet100")),
        {"train": "train", "test": "val"},
        ".JPEG",
        (N_TRAIN, 1),
    )


MAKERS = {
    "cifar10": make_cifar,
    "cifar100": make_cifar,
    "imagenet100": make_imagenet,
    "cub": make_cub,
    "cars": make_cars,
    "aircraft": make_aircraft,
    "herbarium19": make_herbarium,
}


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StandIn]:
    """Stand-ins that are written once and only read."""
    return {name: make(tmp_path_factory.mktemp(name), name) for name, make in MAKERS.items()}


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_image_is_read_with_its_class_and_the_published_draw_is_labeled(
    stand_ins: dict[str, StandIn], name: str, part: Part
) -> None:
    """The test part has no labels here; the released code uses them to choose its model."""
    made = stand_ins[name]
    split = load_split(name)
    found = read_benchmark(name, made.root, part=part)
    truth = split.positions[made.class_ids[part]]  # known classes first
    expected = dict(zip(made.names[part], truth.tolist(), strict=True))
    names = found.collection.names
    assert names == tuple(sorted(expected))
    assert dict(zip(names, found.truth.tolist(), strict=True)) == expected
    assert found.is_known.tolist() == [label < len(split.known) for label in found.truth]
    assert found.split is split
    drawn = known_novel_split(np.array(made.class_ids[part]), split.known, 0.5, seed=0)
    if part == "test":
        drawn[:] = -1
    labels = dict(zip(made.names[part], drawn.tolist(), strict=True))
    assert found.collection.labels.tolist() == [labels[image] for image in names]


def test_cifar_pixels_are_red_green_blue_row_by_row(stand_ins: dict[str, StandIn]) -> None:
    made = stand_ins["cifar100"]
    images = read_benchmark("cifar100", made.root).collection.images
    assert isinstance(images, np.ndarray)
    assert (images.shape, images.dtype) == ((500, 32, 32, 3), np.uint8)
    assert (images[7, ..., 0] == 7).all()
    assert (images[7, ..., 1] == made.class_ids["train"][7]).all()
    assert (images[7, 5, :, 2] == np.arange(32)).all()


def test_a_cut_off_cifar_file_is_refused(tmp_path: Path) -> None:
    made = make_cifar(tmp_path, "cifar10")
    file = made.root / "cifar-10-batches-bin" / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin"):
        read_benchmark("cifar10", tmp_path)


def test_cifar_pickles_are_never_opened_and_the_error_says_why(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    with pytest.raises(DataError, match=r"train\.bin"):
        read_benchmark("cifar100", tmp_path)
    assert not (tmp_path / "opened").exists()


def test_cars_without_test_labels_name_the_file_that_has_them(tmp_path: Path) -> None:
    """The devkit's own cars_test_annos.mat has no classes."""
    made = make_cars(tmp_path, "cars")
    with_labels = tmp_path / "devkit" / "cars_test_annos_withlabels.mat"
    with_labels.unlink()
    with pytest.raises(DataError, match=r"devkit/cars_test_annos_withlabels\.mat"):
        read_benchmark("cars", tmp_path, part="test")
    (tmp_path / "devkit" / "cars_test_annos.mat").rename(with_labels)
    with pytest.raises(DataError):
        read_benchmark("cars", tmp_path, part="test")
    assert len(read_benchmark("cars", tmp_path).collection) == len(made.names["train"])


def test_another_edition_of_the_classes_is_refused(tmp_path: Path) -> None:
    make_cub(tmp_path, "cub")
    file = tmp_path / "CUB_200_2011" / "classes.txt"
    file.write_text(file.read_text().replace("071.Long_tailed_Jaeger", "071.Jaeger"))
    with pytest.raises(DataError):
        read_benchmark("cub", tmp_path)


def test_listed_images_that_are_absent_are_an_error_not_another_split(tmp_path: Path) -> None:
    made = make_cub(tmp_path, "cub")
    for name in made.names["train"][:2]:
        (tmp_path / "CUB_200_2011" / name).unlink()
    with pytest.raises(
        DataError, match=rf"2 files .*{made.names['train'][0]}.*datasets verify cub"
    ):
        read_benchmark("cub", tmp_path)
    assert len(read_benchmark("cub", tmp_path, part="test").collection) == len(made.names["test"])


def test_a_herbarium_without_all_classes_is_refused_because_ids_would_shift(tmp_path: Path) -> None:
    make_folders(
        tmp_path, ["1", "2"], {"train": "small-train", "test": "small-validation"}, ".jpg", (2, 1)
    )
    with pytest.raises(DataError):
        read_benchmark("herbarium19", tmp_path)
