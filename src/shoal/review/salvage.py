"""The good part of a damaged log: all lines that can be read and applied."""

import json
from pathlib import Path

from shoal.errors import UsageError
from shoal.review.log import FILE, Log
from shoal.review.review import (
    OtherResult,
    apply_line,
    check_result,
    checked_who,
    write_review,
)
from shoal.review.state import State
from shoal.runs import Run, reading


def salvage(run: Run) -> tuple[list[str], Path | None]:
    """Rewrite the log of a run without the lines that cannot be read or applied.

    Returns what is dropped, line by line, and the copy of the damaged log; nothing is written, and
    the copy is None, if no line is dropped.
    """
    log = Log(run.path / FILE)
    if not run.has(FILE):
        raise UsageError(f"{log.file}: does not exist, so there is nothing to salvage")
    with log.locked():
        with reading(log.file):
            content = log.file.read_bytes()
        state = State(run)
        dropped = _apply_lines(content, state)
        if not dropped:
            return [], None
        copy = log.backup("review-damaged")
        write_review(log, state, checked_who(None))
    return dropped, copy


def _apply_lines(content: bytes, state: State) -> list[str]:
    """Apply the lines of a log to the state, numbered anew; return those that cannot be."""
    dropped = []
    seq_of: dict[object, int] = {}  # the new number of each action
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            line = json.loads(text)
            if line["action"] == "start":
                check_result(line, state)
                continue
            if "of" in line:
                line["of"] = seq_of.get(line["of"], 0)  # 0 is no action
            seq_of[line["seq"]] = apply_line(state, line)
        except OtherResult:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            dropped.append(f"line {number}: cannot be read or applied ({error})")
    return dropped
