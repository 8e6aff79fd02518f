"""The file `review.jsonl`: lines that are only ever added, each on the disk before it counts.

What the lines say is in `shoal.review.actions`. A process that was killed while it wrote may leave
half a last line: it was never answered, so it does not count, `note` tells, and the next line takes
its place. A last line that only lacks its end, which some editors take away, counts. Several
processes may add to one log, one at a time.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, writing
from shoal.runs import locked_file

FILE = "review.jsonl"
"""The log in a run folder."""

WAIT_S = 10.0
"""Seconds to wait for another process that adds a line."""

END_BYTES = 512
"""Bytes compared before anything is added: they hold what was done last, or the end of it."""

Line = Mapping[str, object]


class Log:
    """The lines of a log, read from where the last reading ended."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.has_half = False
        """Whether half a line is at the end."""
        self._offset = 0
        self._n_lines = 0
        self._end = b""
        """The last bytes read or written, by which a file that was put here instead is known."""

    @property
    def has_more(self) -> bool:
        """Whether the file has another length than when it was read, or is gone."""
        try:
            return self.file.stat().st_size != self._offset
        except FileNotFoundError:
            return self._offset > 0

    def read_on(self) -> Iterator[Line]:
        """The lines that were added since the last call.

        A file that no longer holds what was read is refused: what is added would fit nothing
        before it.
        """
        content = b""
        with contextlib.suppress(FileNotFoundError), self.file.open("rb") as file:
            file.seek(self._offset - len(self._end))
            content = file.read()
        if not content.startswith(self._end):
            raise UsageError(
                f"{self.file}: was moved away or replaced while its review was open; put it back, "
                "or open the review again"
            )
        *whole, rest = content[len(self._end) :].split(b"\n")
        for line in whole:
            if line:  # else the end that the last line lacked
                yield self._parsed(line)
                self._n_lines += 1  # only now: nothing is added behind a line that cannot be used
            self._took(line + b"\n")
        self.has_half = bool(rest)
        if rest:
            try:
                last = self._parsed(rest)
            except DataError:
                return
            yield last
            self._n_lines += 1
            self._took(rest)
            self.has_half = False

    def _took(self, data: bytes) -> None:
        """Remember what was read or written."""
        self._offset += len(data)
        self._end = (self._end + data)[-END_BYTES:]

    @property
    def note(self) -> str:
        """What whoever reads the log should know; mostly nothing."""
        if not self.has_half:
            return ""
        return (
            f"note: half a line at the end of {self.file}, which was never answered, is not counted"
        )

    def append(self, line: Line) -> None:
        """Add a line to a log that is held and read to its end; on return it is on the disk."""
        data = _encoded(line)
        if not self._end.endswith(b"\n"):
            data = b"\n" + data
        with writing(self.file):
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
            try:
                os.ftruncate(descriptor, self._offset)  # without the half line of a killed process
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except BaseException:
                with contextlib.suppress(OSError):  # such as half a line on a full disk
                    os.ftruncate(descriptor, self._offset)
                raise
            finally:
                os.close(descriptor)
        self.has_half = False
        self._n_lines += 1
        self._took(data)

    def write_new(self, lines: Sequence[Line]) -> None:
        """Write a whole new log instead of the old one."""
        content = b"".join(map(_encoded, lines))
        with atomic_file(self.file) as file:
            file.write(content)
        self._offset = len(content)
        self._n_lines = len(lines)
        self._end = content[-END_BYTES:]

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Be the only one who adds; waits for another process, which has it for milliseconds."""
        return locked_file(self.file, WAIT_S)

    def damage(self, reason: str) -> DataError:
        """The error for the line that is being read, which cannot be used."""
        return DataError(
            f"{self.file}, line {self._n_lines + 1}: {reason}; put back a copy of the file, or "
            "move it away to start the review anew"
        )

    def _parsed(self, line: bytes) -> Line:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.damage(f"no JSON ({str(error)[:60]})") from error
        if not isinstance(entry, dict) or entry.get("seq") != self._n_lines:
            raise self.damage(f"expected an object with seq {self._n_lines}")
        if not all(isinstance(entry.get(key), str) for key in ("action", "by", "at")):
            raise self.damage("action, by or at is not a text")
        return entry


def _encoded(line: Line) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
