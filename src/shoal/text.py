"""Text of users and their files made safe to print: nothing hidden, nothing steers a terminal."""

import json
import re
import unicodedata

TURNS = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
"""Characters that turn the writing direction, with which gnp.exe is read as exe.png."""

NOTHING = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of characters that draw nothing: control, surrogate, private, unassigned,
line and paragraph."""


def shown(text: str, longest: int | None = None) -> str:
    """Make a name or a line of text printable without hiding anything.

    A line break becomes ␊, an escape ␛, a letter that turns the writing direction its code, any
    other control character �. With `longest`, the middle of a longer name gives way to an ellipsis,
    so that its extension stays.
    """
    if not text.isprintable():
        text = "".join(_visible(letter) for letter in text)
    if longest is None or len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def escaped_json(text: str) -> str:
    """JSON with the same meaning in which characters that steer a terminal are escaped."""
    return re.sub(r"[^\x20-\x7e]", _escaped, text)


def _escaped(match: re.Match[str]) -> str:
    if match[0].isprintable():
        return match[0]
    return json.dumps(match[0]).strip('"')


def _visible(letter: str) -> str:
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures block draws each of these
    if code in TURNS:
        return f"‹U+{code:04X}›"
    if unicodedata.category(letter) in NOTHING:
        return "\N{REPLACEMENT CHARACTER}"
    return letter
