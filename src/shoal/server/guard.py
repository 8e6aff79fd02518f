"""The guard decides which requests are answered.

Each passes it before anything of a run is touched.

A page on another site must not reach a run through the browser of whoever reviews it. So the name
in the Host header has to be this machine's (DNS rebinding), a change has to come from this page
(Origin) with a secret only it was told (CSRF), and whoever has not opened the printed address, with
its token, gets nothing at all.
"""

import ipaddress
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import cookie_parser

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 16 << 20
"""Bytes of a request: about two million rows."""

OPEN_AGAIN = (
    "Open the address that `shoal review` printed when it was started: it has the token. "
    "A page that was open before shows the same again once it is loaded anew."
)
LATE = (
    " The key that this browser was started with has been used, and opens nothing any more, or a minute is over."
    " If you have not used it, another account has: look at the history."
)
TAKEN_BACK = (
    " The key that this browser was started with has been used a second time, so what it had opened is shut."
    " If you have not used it twice, another account has: look at the history."
)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


HTTP_PORT = 80
"""The port of an address that has none."""

OPENS_FOR_S = 60
"""Seconds in which a browser has to ask for the page that it is to open."""


class KeyForOnce:
    """A secret that opens the page once, soon after the start.

    Other accounts of a machine can read it in the command of the browser that is started with it.
    One that is faster gets a cookie that is worth nothing any more once the browser asks.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(24)
        self.cookie = secrets.token_urlsafe(24)
        self.ends = time.monotonic() + OPENS_FOR_S
        self.is_used = self.is_taken_back = False

    def opens(self, key: str, cookie: bytes) -> bool:
        """Check the key: true at its first use, in time.

        Any later use ends the session that it has opened.

        Not from a browser that asks again, with the cookie. This power has no end, since a browser
        may ask late. So another account can shut the browser out at any time: the browser is told
        so, and the other one does not get in.
        """
        if not is_equal(key.encode(), self.secret):
            return False
        if self.is_used and not is_equal(cookie, self.cookie):
            self.is_taken_back = True
        self.is_used, was_used = True, self.is_used
        return not was_used and time.monotonic() <= self.ends


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a browser must show to be let in.

    Every server has a token of its own. Were it kept for the next one, whoever took the port in
    between would be sent it by every page that is still open.
    """

    host: str
    """The address that is listened on."""
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    once: KeyForOnce = field(default_factory=KeyForOnce)
    is_read_only: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or (
            _is_address(self.host) and ipaddress.ip_address(self.host).is_loopback
        )

    @property
    def asks_who(self) -> bool:
        """Whether people have to say who they are before they change anything: there may be several."""
        return not self.is_loopback and not self.is_read_only

    @property
    def url(self) -> str:
        """The address with the token; given once, to whoever started the server."""
        return f"{self._page(socket.gethostname())}?token={self.token}"

    @property
    def url_by_address(self) -> str:
        """The same for a network that does not know this machine's name.

        Nothing where `url` has the address itself.
        """
        address = _own_address(self.host) if self._is_anywhere else ""
        return f"{self._page(address)}?token={self.token}" if address else ""

    @property
    def url_once(self) -> str:
        """The address for the browser that is started here."""
        return f"{self._page('::1' if ':' in self.host else '127.0.0.1')}?once={self.once.secret}"

    @property
    def _is_anywhere(self) -> bool:
        """Whether it listens on every address of this machine, also written in another way: 0, ::0."""
        try:
            packed = (
                socket.inet_pton(socket.AF_INET6, self.host)
                if ":" in self.host
                else socket.inet_aton(self.host)
            )
        except OSError:
            return False
        return not any(packed)

    def _page(self, name_if_anywhere: str) -> str:
        name = name_if_anywhere if self._is_anywhere else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/"

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this machine, on whatever port a tunnel has given it.

        An address cannot be another site's name; a name can, so only this machine's own are known.
        """
        name, _ = _name_and_port(header)
        if self.is_loopback:
            return name in ("localhost", "127.0.0.1", "::1", self.host)
        own = ("localhost", self.host.casefold(), socket.gethostname().casefold())
        return _is_address(name) or name in own or name == self._full_name

    @cached_property
    def _full_name(self) -> str:
        """This machine's name with its domain.

        Asked for once, since a network without an answer takes seconds.
        """
        return socket.getfqdn().casefold()


class Guard:
    """Lets through what may pass, and adds to every answer what a browser may do with it."""

    def __init__(self, app: App, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        secret = self._opens(scope, headers)
        status, reason = self._refusal(scope, headers, opens=secret is not None)
        if status:
            await _answer(send_guarded, status, reason)
        elif secret is not None:
            # Lax: a link on another page, in a chat for example, opens this one. No other request
            # from there has it.
            cookie = f"{_cookie_name(headers)}={secret}; Path=/; HttpOnly; SameSite=Lax"
            more = [
                (b"location", b"/"),
                (b"set-cookie", cookie.encode()),
                (b"cache-control", b"no-store"),
            ]
            await _answer(send_guarded, 303, "", more)
        else:
            await self.app(scope, _bounded(receive, lambda: self._is_known(headers)), send_guarded)

    def _refusal(self, scope: Scope, headers: dict[str, str], *, opens: bool) -> tuple[int, str]:
        """Why a request is not answered: a status and a reason; (0, "") where it is."""
        if not self._knows_host(headers):
            return 421, "This is not the name of this machine."
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            return 403, "Another site has no business here."
        if not opens and not self._is_known(headers):
            return 403, OPEN_AGAIN + self._why_shut(scope, headers)
        if scope["method"] in ("GET", "HEAD"):
            return 0, ""
        if headers.get("origin") != f"http://{headers['host']}":
            return 403, "A change has to come from this page."
        if not is_equal(headers.get("x-shoal-csrf", "").encode(), self.access.csrf):
            return 403, "The page is of an earlier server; load it again."
        if self.access.is_read_only:
            return 403, "This review is open for reading only."
        if (
            not headers.get("content-length", "").isdigit()
            or int(headers["content-length"]) > MAX_BODY
        ):
            return 413, f"A request may have up to {MAX_BODY:,} bytes."
        return 0, ""

    def _is_known(self, headers: dict[str, str]) -> bool:
        shown = _cookie(headers)
        once = self.access.once
        return is_equal(shown, self.access.token) or (
            is_equal(shown, once.cookie) and not once.is_taken_back
        )

    def _why_shut(self, scope: Scope, headers: dict[str, str]) -> str:
        """What a browser is told that was let in by the key, or wanted to be."""
        if scope["query_string"].startswith(b"once="):
            return LATE
        return TAKEN_BACK if is_equal(_cookie(headers), self.access.once.cookie) else ""

    def _knows_host(self, headers: dict[str, str]) -> bool:
        try:
            return self.access.knows_host(headers.get("host", ""))
        except ValueError:
            return False

    def _opens(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """The cookie for the printed address, or for the one that a browser was started with, the first time."""
        if scope["path"] != "/" or scope["method"] != "GET" or not self._knows_host(headers):
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"))
        access = self.access
        token, once = (query.get(name, [""])[0] for name in ("token", "once"))
        if is_equal(token.encode(), access.token):
            return access.token
        return access.once.cookie if access.once.opens(once, _cookie(headers)) else None


def is_equal(shown: bytes, secret: str) -> bool:
    """Compare in a time that tells nothing of the secret."""
    return secrets.compare_digest(shown, secret.encode())


def _name_and_port(host: str) -> tuple[str, int]:
    """What a Host header names; ValueError where it is none."""
    parts = urlsplit(f"//{host}")
    return parts.hostname or "", parts.port or HTTP_PORT


def _cookie_name(headers: dict[str, str]) -> str:
    """A name by the port that the browser sees, be it a tunnel's: cookies are shared between the ports of a machine."""
    return f"shoal-{_name_and_port(headers['host'])[1]}"


def _cookie(headers: dict[str, str]) -> bytes:
    """Our cookie among those of other programs on this machine, whose names and values may be anything."""
    return cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers), "").encode()


def _bounded(receive: Receive, is_known: Callable[[], bool]) -> Receive:
    """Receive no more than a request may have, whatever its header says.

    Nothing of one shut out meanwhile.
    """
    left = MAX_BODY

    async def receive_bounded() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive() if is_known() else {"type": "http.disconnect"}
        left -= len(message.get("body", b""))
        return message if left >= 0 and is_known() else {"type": "http.disconnect"}

    return receive_bounded


async def _answer(
    send: Send, status: int, text: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_address(host: str) -> str:
    """The address under which others reach this machine.

    Nothing where there is no network. Nothing is sent.
    """
    family, other = (
        (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((other, HTTP_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
