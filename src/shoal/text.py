"""Make names and text of users safe to print: control characters become visible."""

import unicodedata

DIRECTION_CODES = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
"""Characters that change the writing direction, so that gnp.exe is displayed as exe.png."""

INVISIBLE = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of invisible characters: control, surrogate, private, unassigned, line and
paragraph."""


def shown(text: str, longest: int | None = None) -> str:
    """Return text with every invisible character replaced by a visible one.

    A line break becomes ␊, an escape ␛, a change of the writing direction its code, any other
    control character �. The middle of a text that is longer than `longest` becomes an ellipsis, so
    that a file keeps its suffix.
    """
    if not text.isprintable():
        text = "".join(_visible(letter) for letter in text)
    if longest is None or len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _visible(letter: str) -> str:
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures block draws each of these
    if code in DIRECTION_CODES:
        return f"‹U+{code:04X}›"
    if unicodedata.category(letter) in INVISIBLE:
        return "\N{REPLACEMENT CHARACTER}"
    return letter


def one_line(error: BaseException, longest: int | None = None) -> str:
    """Return the message of an error on one line, or the name of its class if it has none."""
    return " ".join(str(error).split())[:longest] or type(error).__name__
