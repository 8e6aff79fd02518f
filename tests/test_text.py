import json

from shoal.text import escaped_json, shown


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


def test_json_keeps_its_meaning_and_shows_what_would_steer_a_terminal() -> None:
    name = "\x9b31m \u202e\U000e0001 ö \U0001f600"
    written = escaped_json(json.dumps(name, ensure_ascii=False))
    assert written == '"\\u009b31m \\u202e\\udb40\\udc01 ö \U0001f600"'
    assert json.loads(written) == name
