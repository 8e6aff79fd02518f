import pytest

from shoal.words import count, duration, first_few, number, percent, span


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
        (span([3, 1, 2]), "1–3"),
        (span([5, 5]), "5"),
    ],
)
def test_numbers_read_like_words(found: str, expected: str) -> None:
    assert found == expected


def test_the_first_few_are_named_and_that_there_are_more() -> None:
    assert first_few(["a", "b", "c"]) == "a, b, c"
    assert first_few(["a", "b", "c", "d"]) == "a, b, c, …"
    assert first_few(["a", "b"], 1, separator="; ") == "a; …"
    assert first_few([]) == ""
