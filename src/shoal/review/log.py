"""The file `review.jsonl`, to which lines are only ever appended.

A line is on the disk before the action counts. The lines are described in `shoal.review.actions`. A
process that is killed while it writes may leave an incomplete last line: its action was never
acknowledged, so the line is ignored, reported by `note`, and overwritten by the next line. A last
line that lacks only its line break counts. Several processes may append to one log, one at a time.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, writing
from shoal.runs import locked_file

# The log in a run folder
FILE = "review.jsonl"

# Seconds to wait for another process that appends a line
WAIT_S = 10.0

# Number of last bytes that are compared before appending, to detect a replaced file
END_BYTES = 512

Line = Mapping[str, Any]


class Log:
    """The lines of a log, read incrementally."""

    def __init__(self, file: Path) -> None:
        if file.is_dir():
            raise DataError(f"{file}: is a folder, expected the log of a review; move it away")
        self.file = file
        self.note = ""
        """A message about an incomplete last line; empty if there is none."""
        self._offset = 0
        self.n_lines = 0
        self._end = b""
        """The last bytes read or written."""

    @property
    def has_more(self) -> bool:
        """Whether the file has changed in length since it was read, or is gone."""
        try:
            return self.file.stat().st_size != self._offset
        except FileNotFoundError:
            return self._offset > 0

    def read_new(self) -> Iterator[Line]:
        """Yield the lines added since the last call.

        Raises UsageError if the file no longer contains what was read before.
        """
        content = b""
        with contextlib.suppress(FileNotFoundError), self.file.open("rb") as file:
            file.seek(self._offset - len(self._end))
            content = file.read()
        if not content.startswith(self._end):
            raise UsageError(
                f"{self.file}: was moved or replaced while its review was open; put it back, or "
                "open the review again"
            )
        self.note = ""
        for line in content[len(self._end) :].splitlines(keepends=True):
            if line.strip():  # empty: the line break that the last line lacked
                try:
                    parsed = self._parse(line)
                except DataError:
                    if line.endswith(b"\n"):
                        raise
                    self.note = (
                        f"note: ignoring an incomplete last line in {self.file}; its action was "
                        "never saved"
                    )
                    return
                yield parsed
                # Counted after the caller has accepted the line: nothing is appended behind a
                # line that cannot be used.
                self.n_lines += 1
            self._advance(line)

    def _advance(self, data: bytes) -> None:
        self._offset += len(data)
        self._end = (self._end + data)[-END_BYTES:]

    def append(self, line: str) -> None:
        """Append a line to a locked log that was read to its end, and sync it to the disk."""
        data = f"{line}\n".encode()
        if not self._end.endswith(b"\n"):
            data = b"\n" + data
        with writing(self.file), self.file.open("r+b", buffering=0) as file:
            try:
                file.truncate(self._offset)  # removes an incomplete last line
                file.seek(self._offset)
                rest = data
                while rest:
                    rest = rest[os.write(file.fileno(), rest) :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(self._offset)  # part of the line, on a full disk
                raise
        self.n_lines += 1
        self._advance(data)

    def write_new(self, lines: Sequence[str]) -> None:
        content = "".join(f"{line}\n" for line in lines).encode()
        with atomic_file(self.file) as file:
            file.write(content)
        self._offset = len(content)
        self.n_lines = len(lines)
        self._end = content[-END_BYTES:]

    def backup(self, stem: str) -> Path:
        """Copy the log to the first free name: `stem`-1.jsonl, `stem`-2.jsonl and so on."""
        names = (self.file.with_name(f"{stem}-{number}.jsonl") for number in itertools.count(1))
        copy = next(file for file in names if not file.exists())
        with atomic_file(copy) as file:
            file.write(self.file.read_bytes())
        return copy

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock the log for appending; another process holds the lock for milliseconds."""
        return locked_file(self.file, WAIT_S)

    def damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self.file}, line {self.n_lines + 1}: {reason}; restore a copy of the file, or keep "
            f"the other lines with `shoal review {self.file.parent} --salvage`"
        )

    def _parse(self, line: bytes) -> Line:
        try:
            entry: Line = json.loads(line)
            texts = (entry["action"], entry["by"], entry["at"])
            is_valid = entry["seq"] == self.n_lines and all(isinstance(text, str) for text in texts)
        except (ValueError, TypeError, KeyError, RecursionError):
            is_valid = False
        if not is_valid:
            raise self.damaged(f"expected JSON with seq {self.n_lines}, action, by and at")
        return entry
