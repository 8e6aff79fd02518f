from collections.abc import Callable

import pytest

from shoal.report.page import cards, columns, priority
from shoal.report.rendering import data_uris
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Run


def images(n: int, category_id: int, is_novel: bool = False) -> list[Assignment]:
    """Return images of one category, the most typical first."""
    name = f"c{category_id}"
    return [
        Assignment(
            path=f"{name}/{i:02d}",
            category_id=category_id,
            category=name,
            is_novel=is_novel,
            confidence=1 - i / 100,
            outlier_score=i / 100,
            nearest_known="c0",
            nearest_known_similarity=0.5,
        )
        for i in range(n)
    ]


def test_a_large_category_shows_both_ends_and_a_small_one_everything_once(
    plain_run: Callable[..., Run],
) -> None:
    found = cards(
        ReviewedRun.of(plain_run(images(20, 0) + images(8, 1, True) + images(3, 2, True)))
    )
    assert [card.category.category for card in found] == ["c0", "c1", "c2"]
    assert found[0].typical == [0, 1, 2, 3, 4, 5]
    assert found[0].least == [19, 18, 17, 16, 15, 14]
    assert found[1].typical == [20, 21, 22, 23, 24, 25]
    assert found[1].least == [27, 26]
    assert found[2].typical == [28, 29, 30]
    assert found[2].least == []


def test_images_without_a_category_get_a_card_of_their_own(plain_run: Callable[..., Run]) -> None:
    found = cards(ReviewedRun.of(plain_run(images(3, 0) + images(2, -1, True))))
    assert [(card.category.category, card.category.size) for card in found] == [
        ("c0", 3),
        ("no category", 2),
    ]


def test_thumbnails_are_spent_on_every_card_before_any_gets_a_second(
    plain_run: Callable[..., Run],
) -> None:
    found = cards(ReviewedRun.of(plain_run(images(20, 0) + images(2, 1, True))))
    assert priority(found)[:5] == [0, 20, 19, 21, 1]


def test_thumbnails_stop_at_the_budget_and_the_first_rows_go_first(
    plain_run: Callable[..., Run],
) -> None:
    run = plain_run(images(500, 0))
    run.write_thumbnails(b"\xff\xd8\xff" + bytes(3000) for _ in range(500))
    uris = data_uris(ReviewedRun.of(run), range(499, -1, -1), 1_000_000)
    assert list(uris) == list(range(499, 499 - len(uris), -1))
    assert 1_000_000 - 4100 < sum(map(len, uris.values())) <= 1_000_000
    assert len(data_uris(ReviewedRun.of(run), [7, 7, 8], 1_000_000)) == 2


@pytest.mark.parametrize(
    ("root", "linked"),
    [
        ("/photos", "file:///photos"),
        ("s3://bucket/photos", None),
        ("/data/shards-{0..1}.tar", None),
        ("", None),
    ],
)
def test_originals_are_linked_only_where_they_are_files_of_a_folder(
    root: str, linked: str | None, plain_run
) -> None:
    run = plain_run(images(4, 0))
    run.note(root=root)
    assert columns(ReviewedRun.of(run), [0, 1])["root"] == linked
