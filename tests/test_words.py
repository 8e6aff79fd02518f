from shoal.errors import shown


def test_a_name_keeps_every_letter_that_can_be_seen_and_shows_the_rest() -> None:
    assert shown("Ærfugl / hunn 日本 🐟 <b>.png") == "Ærfugl / hunn 日本 🐟 <b>.png"
    assert shown("two\nlines\tand\x00nul") == "two␊lines␉and␀nul"
    assert shown("del\x7f c1\x85 nonchar\ufffe") == "del� c1� nonchar�"


def test_a_name_cannot_turn_the_writing_direction_in_secret() -> None:
    """U+202E makes a browser display 'gnp.exe' as 'exe.png'."""
    assert shown("\u202egnp.exe") == "‹U+202E›gnp.exe"


def test_a_long_name_loses_its_middle_and_keeps_its_extension() -> None:
    assert shown("a" * 30 + ".jpeg", 16) == "aaaaaaaaaa….jpeg"
    assert len(shown("a" * 99, 16)) == 16
