"""Weights of an encoder fetched once from the Hugging Face hub, because somebody asked: `shoal encoders get`.

Only `config.json` and `model.safetensors` are fetched, files that cannot hold code. What is interrupted goes on where
it stopped. The hub names the SHA-256 of large files: a file that does not have it is not kept.
"""

import hashlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from shoal.errors import MissingError, ShoalError
from shoal.files import make_folder, write_text, writing
from shoal.progress import Progress

WEIGHTS = "model.safetensors"
FILES: Final = (WEIGHTS, "config.json")
"""In the order in which they are fetched: a folder counts as an encoder's once config.json is there."""

RECORD = "download.json"
"""Where from, which version, and the checksums, beside the files."""

HUB = "https://huggingface.co"
TIMEOUT_S = 30.0
CHUNK = 1 << 20
N_TRIES = 5
"""Tries without a byte in between, before a connection counts as lost."""

PAUSE_S = 1.0
MAX_REDIRECTS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """A file of the hub before it is fetched."""

    url: str
    size: int
    sha256: str | None
    """None where the hub does not say, as for small files."""
    commit: str | None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def endpoint() -> str:
    """The hub, or the mirror that $HF_ENDPOINT names, as for the hub's own client."""
    return os.environ.get("HF_ENDPOINT", HUB).rstrip("/")


def look_up(hub_id: str) -> dict[str, Remote]:
    """The files of a model that would be fetched, with their sizes."""
    return {
        name: _ask_server(f"{endpoint()}/{hub_id}/resolve/main/{name}", hub_id) for name in FILES
    }


def fetch(files: dict[str, Remote], folder: Path, progress: Progress) -> dict[str, str]:
    """Fetch files into a folder, or what is missing of them; their SHA-256 by name."""
    make_folder(folder)
    total = sum(file.size for file in files.values())
    digests = dict[str, str]()
    _check_space(folder, total)
    for name, remote in files.items():
        before = sum(files[other].size for other in digests)
        digests[name] = _fetch(remote, folder / name, partial(_tell, progress, before, total))
    record = {
        "from": {name: file.url for name, file in files.items()},
        "commit": files[WEIGHTS].commit,
        "sha256": digests,
    }
    record["checked_against"] = (
        "the hub's own checksum" if files[WEIGHTS].sha256 else "nothing: the server names none"
    )
    write_text(folder / RECORD, json.dumps(record, indent=1) + "\n")
    return digests


def _tell(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _ask_server(url: str, hub_id: str) -> Remote:
    """What the hub says of a file: large ones lie elsewhere, and the redirect has their size and checksum."""
    opener = urllib.request.build_opener(_NoRedirect)
    for _ in range(MAX_REDIRECTS):
        with _explained(url, hub_id):
            try:
                with opener.open(_request(url, "HEAD"), timeout=TIMEOUT_S) as answer:
                    headers = answer.headers
            except urllib.error.HTTPError as error:
                error.close()  # it holds the connection, and whoever hears of it may keep it for long
                if error.code not in (301, 302, 303, 307, 308):
                    raise
                headers = error.headers
        size = headers.get("X-Linked-Size") or (
            None if "Location" in headers else headers.get("Content-Length")
        )
        if size is not None:
            etag = (
                str(headers.get("X-Linked-Etag") or headers.get("ETag") or "")
                .removeprefix("W/")
                .strip('"')
            )
            is_sum = re.fullmatch("[0-9a-f]{64}", etag) is not None
            commit = headers.get("X-Repo-Commit")
            return Remote(url=url, size=int(size), sha256=etag if is_sum else None, commit=commit)
        if "Location" not in headers:
            break
        url = urllib.parse.urljoin(url, headers["Location"])
    raise MissingError(
        f"{url}: the server does not say how large the file is; is {endpoint()} a hub?"
    )


def _fetch(remote: Remote, file: Path, progress: Callable[[int], None]) -> str:
    """Fetch one file, going on with what is here of the same version; its SHA-256."""
    version = remote.sha256 or remote.commit or "unknown"
    part = file.with_name(f".{file.name}.{version[:16]}.part")
    tries = N_TRIES
    while (done := _size(part)) < remote.size:
        lost: Exception | None = None
        try:
            _append(remote, part, done, progress)
        except (OSError, http.client.HTTPException) as error:  # lost connections are a dozen kinds
            lost = error
            time.sleep(PAUSE_S)
        tries = N_TRIES if _size(part) > done else tries - 1
        if isinstance(lost, urllib.error.HTTPError):
            lost.close()
        if not tries or isinstance(lost, urllib.error.HTTPError):
            raise MissingError(
                f"{remote.url}: the connection was lost ({lost or 'nothing more comes'}); {_size(part):,} of "
                f"{remote.size:,} bytes are here, and the same command goes on with them"
            ) from lost
    progress(remote.size)
    digest = _digest(part)
    if _size(part) != remote.size or (remote.sha256 is not None and digest != remote.sha256):
        part.unlink()
        raise MissingError(
            f"{remote.url}: what came is not what the hub announced (SHA-256 {digest[:16]}…, expected "
            f"{(remote.sha256 or 'another size')[:16]}…), so it was thrown away; give the command again"
        )
    with writing(file):
        part.replace(file)
    return digest


def _append(remote: Remote, part: Path, done: int, progress: Callable[[int], None]) -> None:
    """Add to a file what is missing behind its first `done` bytes; a server that sends all starts it over."""
    with urllib.request.urlopen(
        _request(remote.url, "GET", start=done), timeout=TIMEOUT_S
    ) as answer:
        is_rest = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {done}-"
        )
        done = done if is_rest else 0
        with writing(part):
            out = part.open("ab" if is_rest else "wb")
        with out:
            while chunk := answer.read(CHUNK):
                with writing(part):
                    out.write(chunk)
                done += len(chunk)
                progress(done)
            with writing(part):
                out.flush()
                os.fsync(out.fileno())


def _request(url: str, method: str, *, start: int = 0) -> urllib.request.Request:
    headers = {"User-Agent": "shoal", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return urllib.request.Request(url, method=method, headers=headers)


@contextmanager
def _explained(url: str, hub_id: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404):
            raise MissingError(
                f"{url}: not to be had ({error.code} {error.reason}), and files of other formats are not fetched here, "
                f"because opening them can run code; `hf download {hub_id}` fetches what there is"
            ) from error
        raise MissingError(
            f"{url}: the server answers {error.code} {error.reason}; try again later"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise MissingError(f"{url}: cannot be reached ({reason}); is there a network?") from error


def _check_space(folder: Path, needed: int) -> None:
    here = sum(file.stat().st_size for file in folder.glob(".*.part"))
    free = shutil.disk_usage(folder).free
    if needed - here > free:
        raise ShoalError(
            f"{folder}: {needed >> 20:,} MB are needed, {free >> 20:,} MB are free; set SHOAL_WEIGHTS"
        )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
