import pytest

from shoal.report.words import count, duration, number, percent, shown, span


def test_a_name_keeps_every_letter_that_can_be_seen_and_shows_the_rest() -> None:
    assert shown("Ærfugl / hunn 日本 🐟 <b>.png") == "Ærfugl / hunn 日本 🐟 <b>.png"
    assert shown("two\nlines\tand\x00nul") == "two␊lines␉and␀nul"
    assert shown("del\x7f c1\x85 nonchar\ufffe") == "del� c1� nonchar�"


def test_a_name_cannot_turn_the_writing_direction_in_secret() -> None:
    """U+202E makes a browser draw 'gnp.exe' as 'exe.png'."""
    assert shown("\u202egnp.exe") == "‹U+202E›gnp.exe"


def test_a_long_name_loses_its_middle_and_keeps_its_extension() -> None:
    assert shown("a" * 30 + ".jpeg", 16) == "aaaaaaaaaa….jpeg"
    assert len(shown("a" * 99, 16)) == 16


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (count(1, "image"), "1 image"),
        (count(1234, "image"), "1,234 images"),
        (count(0, "category"), "0 categories"),
        (count(1, "labeled image"), "1 labeled image"),
        (count(2, "true class"), "2 true classes"),
        (percent(0.8125), "81.2 %"),
        (percent(float("nan")), "–"),
        (number(2 / 3), "0.67"),
        (duration(4.25), "4.2 s"),
        (duration(200), "3 min 20 s"),
        (duration(7500), "2 h 05 min"),
        (span([3, 1, 2]), "1 to 3"),
        (span([5, 5]), "5"),
    ],
)
def test_numbers_read_like_words(found: str, expected: str) -> None:
    assert found == expected
