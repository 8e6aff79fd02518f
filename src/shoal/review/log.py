"""The file `review.jsonl`: lines that are only ever added, each on the disk before anybody is told that it counts.

What the lines say is in `shoal.review.actions`. A process that was killed while it wrote may leave half a last line: it
was never answered, so it does not count, and `note` tells; who adds to the log drops it. A last line that only lacks
its end, which some editors take away, counts. Several processes may add to one log, one at a time.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, writing
from shoal.review.run_tables import Encoded
from shoal.runs import locked_file

FILE = "review.jsonl"
"""The log in a run folder."""

WAIT_S = 10.0
"""Seconds to wait for another process that adds a line."""

END_BYTES = 512
"""Bytes compared before anything is added: they hold what was done last, or the end of its list of images."""

HERE = "\0here\0"
"""Stands for what is encoded already while the rest of a line is; names that people give are printable."""


class Log:
    """The lines of a log, read from where the last reading ended."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self.dropped = ""
        """The half line at the end that was dropped; empty where there was none."""
        self.has_half = False
        """Whether half a line is at the end."""
        self._offset = 0
        self._n_lines = 0
        self._end = b""
        """The last bytes that were read or written, by which a file that another program put here is known."""
        self._lacks_end = False
        """Whether the last line that was read had no line break."""

    def __bool__(self) -> bool:
        return self.file.is_file()

    @property
    def has_more(self) -> bool:
        """Whether the file has another length than when it was read, or is gone."""
        try:
            return self.file.stat().st_size != self._offset
        except FileNotFoundError:
            return self._offset > 0

    def read_on(self, *, mends: bool = False) -> Iterator[dict[str, Any]]:
        """The lines that were added since the last call; `mends` cuts half a line off the file (hold it then).

        A file that no longer holds what was read is refused: what is added to it would fit nothing before it.
        """
        if not self and not self._offset:
            return
        try:
            with self.file.open("rb") as file:
                file.seek(self._offset - len(self._end))
                content = file.read()
        except FileNotFoundError:
            content = b""
        if not content.startswith(self._end):
            what = "was moved away or replaced while its review was open"
            raise UsageError(f"{self.file}: {what}; put it back, or open the review again")
        added = content[len(self._end) :]
        if self._lacks_end and added.startswith(b"\n"):
            added = added[1:]
            self._took(b"\n")
        whole, end, rest = added.rpartition(b"\n")
        for line in whole.split(b"\n") if end else ():
            yield self._parsed(line)
            self._n_lines += 1  # only now: a line that cannot be used stays unread, and nothing is added behind it
            self._took(line + b"\n")
        if rest and not self._lacks_end and (entry := self._whole(rest)) is not None:
            yield entry
            self._n_lines += 1
            self._took(rest)
            rest = b""
        self.has_half = bool(rest)
        if mends and (rest or self._lacks_end):
            self._mend(rest)

    def _took(self, data: bytes) -> None:
        """Remember what was read or written."""
        self._offset += len(data)
        self._end = (self._end + data)[-END_BYTES:]
        self._lacks_end = not data.endswith(b"\n")

    def _mend(self, rest: bytes) -> None:
        """Cut half a line off, and end a line that lacks its end."""
        self.dropped = rest.decode("utf-8", "replace") or self.dropped
        self.has_half = False
        with writing(self.file), self.file.open("r+b") as file:
            file.truncate(self._offset)
            if self._lacks_end:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
                self._took(b"\n")
                file.flush()
            os.fsync(file.fileno())

    @property
    def note(self) -> str:
        """What whoever reads the log without adding to it should know; mostly nothing."""
        told = (
            f"note: half a line at the end of {self.file}, which was never answered, is not counted"
        )
        return told if self.has_half else ""

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to a log that is held and read to its end; when this returns, it is on the disk."""
        data = encoded(line)
        with writing(self.file):
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except BaseException:
                with contextlib.suppress(OSError):  # such as half a line on a full disk
                    os.ftruncate(descriptor, self._offset)
                raise
            finally:
                os.close(descriptor)
        self._took(data)
        self._n_lines += 1

    def write_new(self, lines: list[Mapping[str, Any]]) -> None:
        """Write a whole new log instead of the old one."""
        content = b"".join(map(encoded, lines))
        with atomic_file(self.file) as file:
            file.write(content)
        self._offset = len(content)
        self._n_lines = len(lines)
        self._end = content[-END_BYTES:]
        self._lacks_end = False

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Be the only one who adds; waits for another process, which has it for milliseconds."""
        return locked_file(self.file, WAIT_S)

    def damage(self, reason: str) -> DataError:
        """The error for the line that is being read, which cannot be used."""
        where = f"{self.file}, line {self._n_lines + 1}"
        return DataError(
            f"{where}: {reason}; put back a copy of the file, or move it away to start the review anew"
        )

    def _whole(self, line: bytes) -> dict[str, Any] | None:
        """A last line without its line break; None for half a line."""
        try:
            return self._parsed(line)
        except DataError:
            return None

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.damage(f"no JSON ({str(error)[:60]})") from error
        if not isinstance(entry, dict) or entry.get("seq") != self._n_lines:
            raise self.damage(f"expected an object with seq {self._n_lines}")
        if not all(isinstance(entry.get(key), str) for key in ("action", "by", "at")):
            raise self.damage("action, by or at is not a text")
        return entry


def encoded(line: Mapping[str, Any]) -> bytes:
    """A line as JSON without spaces, ASCII alone; what is encoded already, megabytes perhaps, is copied once."""
    there: list[bytes] = []

    def put_off(value: Encoded) -> str:
        there.append(value.data)
        return HERE

    data = json.dumps(line, separators=(",", ":"), default=put_off).encode()
    parts = data.split(json.dumps(HERE).encode()) if there else [data]
    return b"".join(part for pair in zip(parts, [*there, b"\n"], strict=True) for part in pair)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
