"""What a comparison can be told, and what it refuses."""

import pytest

from shoal.discovery.comparison.comparison_settings import (
    ComparisonSettings,
    choose_comparison,
    name_of,
    read_methods,
)
from shoal.errors import UsageError
from shoal.settings import differences, dump_settings, load_settings


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("cms", "found only cms, expected two or more"),
        ("", "found none, expected two or more"),
        ("cms,gcd,cms", "found cms 2 times, expected each once"),
        ("cms,simgdc", "no method 'simgdc'; did you mean 'simgcd'"),
    ],
)
def test_methods_are_two_or_more_that_exist_each_once(methods: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_methods(methods)


def test_the_encoder_as_it_comes_is_the_first_row() -> None:
    found = choose_comparison("cms,agglomerative", epochs=3, n_clusters=7)
    assert [name_of(each) for each in found.methods] == ["frozen", "cms", "agglomerative"]
    assert [each.is_trained for each in found.methods] == [False, True, False]
    assert {each.n_clusters for each in found.methods} == {7}
    assert found.methods[1].of_method.training.epochs == 3


def test_a_change_is_for_every_method_that_has_it_or_for_one() -> None:
    changes = {
        "training.batch_size": 32,
        "gcd.training.lr": 0.5,
        "teacher_warmup": 2,
        "hidden_share": 0.4,
    }
    _, cms, gcd, simgcd = choose_comparison("cms,gcd,simgcd", changes=changes).methods
    assert {each.of_method.training.batch_size for each in (cms, gcd, simgcd)} == {32}
    assert (gcd.of_method.training.lr, cms.of_method.training.lr) == (0.5, 0.01)
    assert simgcd.of_method.teacher_warmup == 2
    assert {each.hidden_share for each in (cms, gcd, simgcd)} == {0.4}


@pytest.mark.parametrize(
    "name", ["training.batchsize", "train", "depths", "recipe", "pim.fit_steps", "method"]
)
def test_a_change_that_no_method_takes_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        choose_comparison("cms,gcd", changes={name: 1})


@pytest.mark.parametrize(
    "given", [{"answer": "trained"}, {"protocol": "paper"}, {"recipe": "cub"}, {"train": False}]
)
def test_what_means_something_for_one_method_alone_is_refused(given) -> None:
    with pytest.raises(UsageError, match="a comparison takes the default recipe of each method"):
        choose_comparison("cms,gcd", **given)


def test_one_encoder_serves_all() -> None:
    with pytest.raises(
        UsageError, match=r"encoder: found dinov2-small for gcd and efficientnet-lite2 .* --encoder"
    ):
        choose_comparison("cms,gcd", changes={"gcd.encoder": "dinov2-small"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"draws": 0}, "draws: found 0"),
        ({"draws": 1.5}, "draws: found 1.5, expected a whole number"),
        ({"draws": "2"}, "draws: found '2'"),
        ({"max_minutes": 0}, "above 0"),
        ({"max_minutes": "5"}, "max_minutes: found '5', expected a number"),
    ],
)
def test_numbers_are_checked(values, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_comparison("cms,gcd", **values)


def test_settings_come_back_from_yaml_and_a_difference_is_named(tmp_path) -> None:
    found = choose_comparison("cms,gcd", epochs=3)
    file = tmp_path / "config.yaml"
    file.write_text(dump_settings(found), encoding="utf-8")
    assert load_settings(ComparisonSettings, file) == found
    other = choose_comparison("cms,gcd", epochs=4)
    assert differences(other, found) == [
        f"methods[{i}].{name}.training.epochs: 4, was 3" for i, name in ((1, "cms"), (2, "gcd"))
    ]
