"""A decoding worker: a process of its own that reads paths from stdin and writes pixels into the cache file.

A path is that of a file, or what `read_stored` takes.

One JSON object per line, both ways: {"row": first row, "paths": […]} in, {"failed": {"position": reason}} out, or
{"error": [errno, text]} when the cache cannot be written. It imports no torch, and ends when stdin does.
"""

import json
import os
import sys
import warnings
from contextlib import closing
from typing import Any, BinaryIO

from PIL import Image

from shoal.data.pixels.decoding import Unreadable, decode_file
from shoal.data.storage.opening import ReadAhead

MAX_BYTES = 4 << 30
"""Address space of a worker: what a decompression bomb may take at most before it counts as unreadable."""


def main() -> None:
    """Serve tasks until stdin ends; arguments: cache file, size, largest number of pixels."""
    data = sys.argv[1]
    size = int(sys.argv[2])
    max_pixels = int(sys.argv[3])
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a decoder prints must not look like a reply
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None  # decode_file has its own limit, and says so
    _limit_memory()
    replies.write("{}\n")
    replies.flush()
    with open(data, "r+b", buffering=0) as rows:  # noqa: PTH123
        for line in sys.stdin:
            task = json.loads(line)
            reply: dict[str, Any]
            try:
                reply = {"failed": decode_into(rows, task["row"], task["paths"], size, max_pixels)}
            except OSError as error:
                reply = {"error": [error.errno, error.strerror]}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def decode_into(
    rows: BinaryIO, first_row: int, paths: list[str], size: int, max_pixels: int
) -> dict[str, str]:
    """Write the pixels of each path into consecutive rows; returns position -> reason for those that failed."""
    failed = {}
    with closing(ReadAhead(paths)) as ahead:
        for position, path in enumerate(paths):
            try:
                pixels = decode_file(path, size, max_pixels=max_pixels, read=ahead.read)
            except Unreadable as error:
                failed[str(position)] = str(error)
                continue
            rows.seek((first_row + position) * len(pixels))
            written = 0
            while written < len(pixels):  # a disk that fills up takes a part before it raises
                written += rows.write(pixels[written:])
    return failed


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(
            resource.RLIMIT_AS, (MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1])
        )
    except (ImportError, ValueError, OSError):  # not POSIX, or a lower limit is set already
        return


if __name__ == "__main__":
    main()
