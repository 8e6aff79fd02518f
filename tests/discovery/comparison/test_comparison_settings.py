"""The settings of a comparison."""

import pytest

from shoal.discovery.discovery_settings import (
    ComparisonSettings,
    choose_comparison,
    name_of,
    read_methods,
)
from shoal.errors import UsageError
from shoal.settings import differences, dump_settings, load_settings


@pytest.mark.parametrize("methods", ["cms", "", "cms,gcd,cms", "cms,simgdc"])
def test_methods_must_be_two_or_more_different_known_names(methods: str) -> None:
    with pytest.raises(UsageError):
        read_methods(methods)


def test_the_first_settings_are_those_of_the_frozen_encoder() -> None:
    found = choose_comparison("cms,agglomerative", epochs=3, n_clusters=7)
    assert [name_of(each) for each in found.methods] == ["frozen", "cms", "agglomerative"]
    assert [each.is_trained for each in found.methods] == [False, True, False]
    assert {each.n_clusters for each in found.methods} == {7}
    assert found.methods[1].method_settings.training.epochs == 3


def test_a_change_applies_to_every_method_with_that_setting_or_to_one() -> None:
    changes = {
        "training.batch_size": 32,
        "gcd.training.lr": 0.5,
        "teacher_warmup": 2,
        "hidden_share": 0.4,
    }
    _, cms, gcd, simgcd = choose_comparison("cms,gcd,simgcd", changes=changes).methods
    assert {each.method_settings.training.batch_size for each in (cms, gcd, simgcd)} == {32}
    assert (gcd.method_settings.training.lr, cms.method_settings.training.lr) == (0.5, 0.01)
    assert simgcd.method_settings.teacher_warmup == 2
    assert {each.hidden_share for each in (cms, gcd, simgcd)} == {0.4}


@pytest.mark.parametrize(
    "name", ["training.batchsize", "train", "recipe", "pim.fit_steps", "method"]
)
def test_a_change_of_a_setting_that_no_method_has_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="changes"):
        choose_comparison("cms,gcd", changes={name: 1})


@pytest.mark.parametrize("given", [{"protocol": "paper"}, {"recipe": "cub"}, {"train": False}])
def test_settings_of_a_single_discovery_are_refused(given) -> None:
    with pytest.raises(UsageError, match="a comparison takes"):
        choose_comparison("cms,gcd", **given)


def test_all_methods_must_have_the_same_encoder() -> None:
    with pytest.raises(UsageError, match=r"gcd\.encoder"):
        choose_comparison("cms,gcd", changes={"gcd.encoder": "dinov2-small"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"repeats": 0}, "repeats: found 0"),
        ({"repeats": 1.5}, "repeats: found 1.5, expected a whole number"),
        ({"repeats": "2"}, "repeats: found '2'"),
        ({"max_minutes": 0}, "above 0"),
        ({"max_minutes": "5"}, "max_minutes: found '5', expected a number"),
    ],
)
def test_numbers_are_checked(values, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_comparison("cms,gcd", **values)


def test_settings_survive_yaml_and_differences_are_listed(tmp_path) -> None:
    found = choose_comparison("cms,gcd", epochs=3)
    file = tmp_path / "config.yaml"
    file.write_text(dump_settings(found), encoding="utf-8")
    assert load_settings(ComparisonSettings, file) == found
    other = choose_comparison("cms,gcd", epochs=4)
    assert differences(other, found) == [
        f"methods.{i}.{name}.training.epochs: 4, was 3" for i, name in ((1, "cms"), (2, "gcd"))
    ]
