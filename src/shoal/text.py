"""Text that users and their files bring, made fit to be printed: nothing hidden, nothing that steers a terminal."""

import re
import unicodedata

TURNS = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
"""Characters that turn the writing direction, with which gnp.exe is read as exe.png."""

NOTHING = ("Cc", "Cs", "Co", "Zl", "Zp")
"""Unicode categories of characters that draw nothing of their own: control, surrogate, private, line and paragraph."""


def shown(text: str, longest: int | None = None) -> str:
    """Make a name or a line of text printable without hiding anything.

    A line break becomes ␊, an escape ␛, a letter that turns the writing direction its code, any other control
    character �.

    With `longest`, the middle of a longer name gives way to an ellipsis, so that its extension stays.
    """
    clean = text if text.isprintable() else "".join(_visible(letter) for letter in text)
    if longest is None or len(clean) <= longest:
        return clean
    tail = longest // 3
    return f"{clean[: longest - tail - 1]}…{clean[len(clean) - tail :]}"


def escaped_json(text: str) -> str:
    """JSON with the same meaning in which every character that steers a terminal is written as its code."""
    return re.sub(
        r"[^\x20-\x7e]", lambda match: match[0] if match[0].isprintable() else _code(match[0]), text
    )


def _code(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _visible(letter: str) -> str:
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures block draws each of these
    if code in TURNS:
        return f"‹U+{code:04X}›"
    is_nothing = code == 0x7F or unicodedata.category(letter) in NOTHING
    return (
        "\N{REPLACEMENT CHARACTER}"
        if is_nothing or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
        else letter
    )
