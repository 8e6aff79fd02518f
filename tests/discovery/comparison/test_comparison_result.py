"""Sentences and numbers of hand-made comparisons."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.clustering.matching import Accuracy
from shoal.discovery.comparison.evaluation import Comparison, Row
from shoal.discovery.discovery_settings import title_of
from shoal.errors import DataError


def row(method: str, ties: list[str], share: float = 0.5, seconds: float = 1.0) -> Row:
    return Row(
        method=method,
        title=title_of(method),
        accuracy=Accuracy(share, share, float("nan")),
        interval=[share, share],
        ranks=[1, 1 + len(ties)],
        rank="1",
        ties=ties,
        n_clusters=[5],
        seconds=seconds,
        run="",
    )


def comparison(*rows: Row) -> Comparison:
    return Comparison(
        path=Path("run"),
        rows=list(rows),
        pairs=[],
        held_out={"n_images": 10, "n_repeats": 1},
        n_clusters={},
        epochs={one.method: 1 for one in rows if one.method not in ("frozen", "agglomerative")},
        unfinished={},
        notes=[],
        command="shoal discover photos",
    )


def test_without_unlabeled_images_there_is_no_command(tmp_path: Path) -> None:
    whole = replace(comparison(row("cms", []), row("frozen", [])), path=tmp_path)
    assert whole.in_words().splitlines()[-1] == "shoal discover photos"
    found = replace(whole, command=None)
    why = "Every image is labeled, so there is nothing left to discover."
    assert found.in_words().splitlines()[-1] == found.to_dict()["sentences"][-1] == why
    assert why not in whole.in_words()
    (tmp_path / "comparison.json").write_text(json.dumps(found.to_dict()), encoding="utf-8")
    assert Comparison.open(tmp_path).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["rows"], []),
        (["rows", 0, "title"], None),
        (["rows", 0, "accuracy"], "all"),
        (["rows", 0, "accuracy", "all"], "much"),
        (["unfinished"], ["gcd"]),
        (["rows", 0, "ties", 0], "nobody"),
        (["held_out"], {}),
        (["epochs"], None),
        (["command"], 3),
    ],
    ids=str,
)
def test_an_edited_comparison_file_is_named(tmp_path: Path, place: list[str | int], value) -> None:
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
