"""What is published about each benchmark, and where its images come from."""

from dataclasses import dataclass

from shoal.errors import UnknownName


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A file to download, and what it leaves in the root when it is unpacked there."""

    names: tuple[str, ...]
    """File names under which it is distributed."""
    leaves: tuple[str, ...]
    """Folders or files that are there once it is unpacked; with one of them present it is not unpacked again."""
    by_hand: str = ""
    """What to do with it, where it is not unpacked by `prepare`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkFacts:
    """Published counts, origin and terms of one benchmark."""

    title: str
    n_images: int
    """Images of the training part: the labeled and the unlabeled ones together."""
    n_test: int
    n_classes: int
    """K: known and novel classes together."""
    n_known: int
    n_labeled: int
    n_unlabeled: int
    labeled_within: int = 0
    """How far the last two may lie from the published ones, where those were rounded or counted indirectly."""
    page: str
    """The official page."""
    terms: str
    layout: str
    """What the official layout consists of, in words."""
    archives: tuple[Archive, ...]


RESEARCH_ONLY = "non-commercial research only"

BENCHMARKS: dict[str, BenchmarkFacts] = {
    "cifar10": BenchmarkFacts(
        title="CIFAR-10",
        n_images=50_000,
        n_test=10_000,
        n_classes=10,
        n_known=5,
        n_labeled=12_500,
        n_unlabeled=37_500,
        page="https://www.cs.toronto.edu/~kriz/cifar.html (the binary version)",
        terms="no license stated; used for research",
        layout="cifar-10-batches-bin/: data_batch_1.bin … data_batch_5.bin, test_batch.bin",
        archives=(Archive(names=("cifar-10-binary.tar.gz",), leaves=("cifar-10-batches-bin",)),),
    ),
    "cifar100": BenchmarkFacts(
        title="CIFAR-100",
        n_images=50_000,
        n_test=10_000,
        n_classes=100,
        n_known=80,
        n_labeled=20_000,
        n_unlabeled=30_000,
        page="https://www.cs.toronto.edu/~kriz/cifar.html (the binary version)",
        terms="no license stated; used for research",
        layout="cifar-100-binary/: train.bin, test.bin",
        archives=(Archive(names=("cifar-100-binary.tar.gz",), leaves=("cifar-100-binary",)),),
    ),
    "imagenet100": BenchmarkFacts(
        title="ImageNet-100",
        n_images=127_115,
        n_test=5_000,
        n_classes=100,
        n_known=50,
        n_labeled=31_900,
        n_unlabeled=95_300,
        labeled_within=50,
        page="https://www.image-net.org (ILSVRC 2012; an account is needed)",
        terms=RESEARCH_ONLY,
        layout="train/<synset>/*.JPEG and val/<synset>/*.JPEG, the 100 synsets of the split or all 1,000",
        archives=(
            Archive(names=("ILSVRC2012_img_train.tar",), leaves=("train",)),
            Archive(
                names=("ILSVRC2012_img_val.tar",),
                leaves=("val",),
                by_hand="the test part, 50,000 images in one folder, is not unpacked here: sort its images into "
                "val/<synset>/ by ILSVRC2012_validation_ground_truth.txt and meta.mat of ILSVRC2012_devkit_t12.tar.gz",
            ),
        ),
    ),
    "cub": BenchmarkFacts(
        title="CUB-200-2011",
        n_images=5_994,
        n_test=5_794,
        n_classes=200,
        n_known=100,
        n_labeled=1_498,
        n_unlabeled=4_496,
        page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        terms=RESEARCH_ONLY,
        layout="CUB_200_2011/: images.txt, image_class_labels.txt, train_test_split.txt, classes.txt, images/",
        archives=(
            Archive(names=("CUB_200_2011.tgz", "CUB_200_2011.tar.gz"), leaves=("CUB_200_2011",)),
        ),
    ),
    "cars": BenchmarkFacts(
        title="Stanford Cars",
        n_images=8_144,
        n_test=8_041,
        n_classes=196,
        n_known=98,
        n_labeled=2_024,
        n_unlabeled=6_120,
        labeled_within=50,  # counted on an alphabetical class order, which is not the devkit's
        page="Stanford AI Lab, Cars dataset (its page is no longer served; look for the files by name)",
        terms=RESEARCH_ONLY,
        layout="devkit/: cars_meta.mat, cars_train_annos.mat, cars_test_annos_withlabels.mat; cars_train/, cars_test/",
        archives=(
            Archive(names=("car_devkit.tgz", "car_devkit.tar.gz"), leaves=("devkit",)),
            Archive(names=("cars_train.tgz", "cars_train.tar.gz"), leaves=("cars_train",)),
            Archive(names=("cars_test.tgz", "cars_test.tar.gz"), leaves=("cars_test",)),
            Archive(
                names=("cars_test_annos_withlabels.mat",),
                leaves=("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat"),
                by_hand="the classes of the test part, which the devkit has not: put it into devkit/, or beside it",
            ),
        ),
    ),
    "aircraft": BenchmarkFacts(
        title="FGVC-Aircraft",
        n_images=6_667,
        n_test=3_333,
        n_classes=100,
        n_known=50,
        n_labeled=1_700,
        n_unlabeled=5_000,
        labeled_within=50,
        page="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        terms=RESEARCH_ONLY,
        layout="fgvc-aircraft-2013b/data/: images_variant_trainval.txt, images_variant_test.txt, images/",
        archives=(Archive(names=("fgvc-aircraft-2013b.tar.gz",), leaves=("fgvc-aircraft-2013b",)),),
    ),
    "herbarium19": BenchmarkFacts(
        title="Herbarium-19",
        n_images=34_225,
        n_test=2_679,
        n_classes=683,
        n_known=341,
        n_labeled=8_900,
        n_unlabeled=25_400,
        labeled_within=50,
        page="Kaggle, Herbarium 2019 - FGVC6 (an account is needed)",
        terms="the rules of the competition; research only",
        layout="small-train/<class>/*.jpg and small-validation/<class>/*.jpg",
        archives=(
            Archive(names=("small-train.tar.gz", "small-train.zip"), leaves=("small-train",)),
            Archive(
                names=("small-validation.tar.gz", "small-validation.zip"),
                leaves=("small-validation",),
            ),
        ),
    ),
}


def get_facts(name: str) -> BenchmarkFacts:
    """The facts of a benchmark by its name."""
    if name not in BENCHMARKS:
        raise UnknownName("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]
