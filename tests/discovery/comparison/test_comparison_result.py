"""Sentences and numbers of comparisons made by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.clustering.matching import Accuracy
from shoal.discovery.comparison.comparison_result import Comparison, Row
from shoal.discovery.comparison.comparison_settings import title_of
from shoal.errors import DataError


def row(method: str, ties: list[str], share: float = 0.5, seconds: float = 1.0) -> Row:
    return Row(
        method=method,
        title=title_of(method),
        accuracy=Accuracy(share, share, float("nan")),
        interval=(share, share),
        ranks=(1, 1 + len(ties)),
        ties=tuple(ties),
        n_clusters=(5,),
        seconds=seconds,
        run="",
    )


def comparison(*rows: Row) -> Comparison:
    return Comparison(
        path=Path("run"),
        rows=rows,
        pairs=(),
        kept={"n_images": 10, "n_draws": 1},
        n_clusters={},
        epochs={one.method: 1 for one in rows if one.method not in ("frozen", "agglomerative")},
        unfinished=(),
        notes=(),
        command="shoal discover photos",
    )


@pytest.mark.parametrize(
    ("ties", "headline"),
    [
        ([], "First: CMS"),
        (["gcd"], "A tie for first: CMS and GCD"),
        (["gcd", "pim", "uno"], "A tie for first: CMS, GCD, PIM and UNO+"),
        (["gcd", "pim", "uno", "orca", "frozen"], "A tie for first: CMS, GCD, PIM and 3 more"),
    ],
)
def test_the_headline_names_a_few_of_those_who_tie_and_counts_the_rest(
    ties: list[str], headline: str
) -> None:
    found = comparison(row("cms", ties), *(row(name, ["cms"]) for name in ties))
    assert found.headline == headline
    assert all(title_of(name) in found.sentences[0] for name in ties), "the sentence names all"


@pytest.mark.parametrize(
    ("first", "others", "quickest"),
    [
        (("cms", 9.0), {"gcd": 3.0, "simgcd": 5.0}, "GCD"),
        (("cms", 9.0), {"gcd": 8.0}, None),  # another time it may be the other way round
        (
            ("cms", 9.0),
            {"frozen": 12.0, "gcd": 1.0},
            "the encoder as it came",
        ),  # views for GCD are not in its second
        (("frozen", 9.0), {"gcd": 1.0}, None),
        (("frozen", 9.0), {"agglomerative": 1.0}, "Agglomerative"),
    ],
)
def test_the_quickest_of_those_who_tie_is_named_where_that_is_no_chance(
    first, others, quickest
) -> None:
    rows = [row(name, ["frozen"], seconds=taken) for name, taken in others.items()]
    sentence = comparison(row(first[0], list(others), seconds=first[1]), *rows).sentences[0]
    if quickest is None:
        assert "quickest" not in sentence
    else:
        assert f"The quickest of them is {quickest}" in sentence


CHANCE = "No training was repeated: chance in training is in no interval and no rank."


@pytest.mark.parametrize(
    ("methods", "n_draws", "is_said"),
    [("cms", 1, True), ("cms", 3, False), ("agglomerative", 1, False)],
)
def test_one_draw_says_that_it_leaves_out_chance_in_training(
    methods: str, n_draws: int, is_said: bool
) -> None:
    found = comparison(row(methods, []), row("frozen", []))
    found = replace(found, kept=found.kept | {"n_draws": n_draws})
    assert (CHANCE in found.in_words().splitlines()) == is_said


def test_without_a_command_the_words_say_why_and_the_numbers_are_null(tmp_path: Path) -> None:
    whole = replace(comparison(row("cms", []), row("frozen", [])), path=tmp_path)
    assert whole.in_words().splitlines()[-2:] == [
        "to run the first on everything:",
        "shoal discover photos",
    ]
    found = replace(whole, command=None)
    why = (
        "There is no command for the first: every image is labeled, so nothing is left to discover."
    )
    assert found.in_words().splitlines()[-1] == found.to_dict()["sentences"][-1] == why
    assert why not in whole.in_words()
    assert "to run the first" not in found.in_words()
    (tmp_path / "comparison.json").write_text(json.dumps(found.to_dict()), encoding="utf-8")
    assert '"command": null' in (tmp_path / "comparison.json").read_text(encoding="utf-8")
    assert Comparison.open(tmp_path).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["rows"], []),
        (["rows", 0, "title"], None),
        (["rows", 0, "accuracy"], "all"),
        (["rows", 0, "accuracy", "all"], "much"),
        (["rows", 1, "ranks"], [1]),
        (["rows", 0, "ties", 0], "nobody"),
        (["kept"], {}),
        (["epochs"], None),
        (["command"], 3),
    ],
    ids=str,
)
def test_a_table_that_was_edited_into_something_else_is_named(
    tmp_path: Path, place: list[str | int], value
) -> None:
    rows = row("cms", ["gcd"]), row("gcd", ["cms"]), row("frozen", [])
    whole = replace(comparison(*rows), path=tmp_path)
    found = whole.to_dict()
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    assert Comparison.open(tmp_path).to_dict() == found
    *before, last = place
    part = found
    for name in before:
        part = part[name]
    part[last] = value
    file.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(DataError, match=r"comparison\.json: damaged or edited"):
        Comparison.open(tmp_path)
