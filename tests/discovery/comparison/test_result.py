"""Sentences and numbers of comparisons made by hand."""

from pathlib import Path

import pytest

from shoal.clustering.matching import Accuracy
from shoal.discovery.comparison.result import Comparison, Row
from shoal.discovery.comparison.settings import title_of


def row(method: str, ties: list[str], share: float = 0.5) -> Row:
    return Row(
        method=method,
        title=title_of(method),
        accuracy=Accuracy(share, share, float("nan")),
        interval=(share, share),
        ranks=(1, 1 + len(ties)),
        ties=tuple(ties),
        n_clusters=(5,),
        seconds=1.0,
        run="",
    )


def comparison(*rows: Row) -> Comparison:
    return Comparison(
        path=Path("run"),
        rows=rows,
        pairs=(),
        kept={"n_images": 10},
        n_clusters={},
        epochs={one.method: 1 for one in rows if one.method != "frozen"},
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
def test_the_headline_names_a_few_of_those_who_tie_and_counts_the_rest(ties: list[str], headline: str) -> None:
    found = comparison(row("cms", ties), *(row(name, ["cms"]) for name in ties))
    assert found.headline == headline
    assert all(title_of(name) in found.sentences[0] for name in ties), "the sentence names all"
