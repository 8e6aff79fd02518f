"""The good part of a damaged log: all lines that can be read and applied."""

import itertools
import json
from pathlib import Path

from shoal.errors import UsageError
from shoal.files import atomic_file
from shoal.review.actions import UNREADABLE, line_of
from shoal.review.log import FILE, Log
from shoal.review.review import apply_line, check_result, checked_who, has_review, start_line
from shoal.review.state import State
from shoal.runs import Run, reading


def salvage(run: Run) -> tuple[list[str], Path | None]:
    """Rewrite the log of a run without the lines that cannot be read or applied.

    Returns what is dropped, line by line, and the copy of the damaged log; nothing is written, and
    the copy is None, if no line is dropped.
    """
    log = Log(run.path / FILE)
    if not has_review(run.path):
        raise UsageError(f"{log.file}: does not exist, so there is nothing to salvage")
    with log.locked():
        with reading(log.file):
            content = log.file.read_bytes()
        state = State(run)
        dropped = _apply_lines(content, state, run)
        if not dropped:
            return [], None
        names = (run.path / f"review-damaged-{number}.jsonl" for number in itertools.count(1))
        copy = next(file for file in names if not file.exists())
        with atomic_file(copy) as file:
            file.write(content)
        lines = [line_of(entry, state.paths) for entry in state.entries]
        log.write_new([start_line(state, checked_who(None)), *lines])
    return dropped, copy


def _apply_lines(content: bytes, state: State, run: Run) -> list[str]:
    """Apply the lines of a log to the state, numbered anew; return those that cannot be."""
    dropped = []
    seq_of: dict[object, int] = {}  # the new number of each action
    for number, text in enumerate(content.splitlines(), start=1):
        reason = ""
        try:
            line = json.loads(text)
            if line["action"] == "start":
                check_result(line, state, run)
                continue
            if "of" in line:
                if line["of"] not in seq_of:
                    raise UsageError(f"{line['action']} of an action that is dropped")
                line["of"] = seq_of[line["of"]]
            seq_of[line["seq"]] = apply_line(state, line)
        except UsageError as error:
            reason = str(error)
        except (KeyError, TypeError):
            reason = UNREADABLE
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            reason = "invalid JSON"
        if reason:
            dropped.append(f"line {number}: {reason}")
    return dropped
