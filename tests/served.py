"""`shoal review` in a separate process, and a client that sends the requests of a browser or of an
attacker."""

import http.client
import json
import signal
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from forks import Forked

# Seconds after which a process hangs for certain, however busy the machine is
HANGS_S = 600


@dataclass
class Served:
    """A running review."""

    process: Forked
    url: str
    said: dict[str, Any]
    csrf: str = field(default="", init=False)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str | None] | None = None,
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers of a response; `headers` override those of the page, and
        None removes one."""
        sent: dict[str, str | None] = {
            "Host": f"127.0.0.1:{self.port}",
            "Cookie": f"shoal-{self.port}={self.token}",
        }
        if method == "POST":
            sent |= {"Origin": f"http://127.0.0.1:{self.port}", "X-Shoal-Csrf": self.csrf}
        sent |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS_S)
        data = b""
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data = json.dumps(body).encode()
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if method == "POST":
            sent.setdefault("Content-Length", str(len(data)))
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(data)
        answer = connection.getresponse()
        received = {name.lower(): value for name, value in answer.getheaders()}
        content = answer.read()
        connection.close()
        return answer.status, content, received

    def json(self, path: str) -> Any:
        status, body, _ = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def act(
        self, action: str, base: int | None = None, by: str = "ann", **fields: Any
    ) -> tuple[int, Any]:
        if not self.csrf:
            self.csrf = self.json("/api/run")["csrf"]
        base = self.json("/api/run")["seq"] if base is None else base
        if "rows" in fields:
            fields["images"] = as_bits(fields.pop("rows"))
        status, body, _ = self.ask(
            "/api/act", "POST", {"action": action, "by": by, "base": base, **fields}
        )
        return status, as_lists(json.loads(body))

    def kill(self) -> None:
        """Kill the server, as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def as_lists(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the changes that the page is sent, with lists of rows, statuses and categories."""
    names = answer.keys() & {"rows", "status", "category"}
    return answer | {name: unpacked(answer[name]).tolist() for name in names}


def unpacked(text: str) -> np.ndarray:
    """Return the numbers of pairs of a difference and how often it is repeated."""
    steps, counts = np.frombuffer(b64decode(text), "<i4").reshape(-1, 2).T
    return np.cumsum(np.repeat(steps, counts))


def as_bits(rows: list[int]) -> str:
    """Return rows as the page sends them: a bit for each image up to the last of them."""
    is_in = np.zeros(max(rows, default=0) + 1, bool)
    is_in[rows] = True
    return b64encode(np.packbits(is_in, bitorder="little").tobytes()).decode()


@contextmanager
def served(run: Path, *options: str) -> Iterator[Served]:
    """Serve the review of a run until the block ends."""
    with closing(
        Forked("review", str(run), "--no-open", "--json", "--port", "0", *options)
    ) as process:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said = json.loads(line)
        yield Served(process, said["url"], said)


def until(holds: Any, seconds: float = HANGS_S) -> None:
    """Wait until `holds` returns a true value."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
