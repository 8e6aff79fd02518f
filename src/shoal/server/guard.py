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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 16 << 20
"""Bytes of a request: about two million rows."""

OPEN_AGAIN = (
    "Open the address that `shoal review` printed when it was started: it has the token. "
    "A page that was open before shows the same again once it is loaded anew."
)
LATE = (
    " The key that this browser was started with has been used, and opens nothing any more, or a "
    "minute is over. If you have not used it, another account has: look at the history."
)
TAKEN_BACK = (
    " The key that this browser was started with has been used a second time, so what it had "
    "opened is shut. If you have not used it twice, another account has: look at the history."
)

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
"""What every answer tells the browser."""

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

    def opens(self, key: str, cookie: str) -> bool:
        """Check the key: true at its first use, in time.

        Any later use ends the session that it has opened.

        Not from a browser that asks again, with the cookie. This power has no end, since a browser
        may ask late. So another account can shut the browser out at any time: the browser is told
        so, and the other one does not get in.
        """
        if not is_equal(key, self.secret):
            return False
        if self.is_used:
            self.is_taken_back |= not is_equal(cookie, self.cookie)
            return False
        self.is_used = True
        return time.monotonic() <= self.ends


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
        if _is_address(self.host):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"

    @property
    def asks_who(self) -> bool:
        """Whether people have to say who they are before they change anything: there may be
        several.
        """
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
        address = ""
        if self._is_anywhere:
            address = _own_address(self.host)
        return f"{self._page(address)}?token={self.token}" if address else ""

    @property
    def url_once(self) -> str:
        """The address for the browser that is started here."""
        return f"{self._page('::1' if ':' in self.host else '127.0.0.1')}?once={self.once.secret}"

    @property
    def _is_anywhere(self) -> bool:
        """Whether it listens on every address of this machine: 0.0.0.0, 0, ::, ::0."""
        return not self.host.strip("0.:")

    def _page(self, name_if_anywhere: str) -> str:
        name = name_if_anywhere if self._is_anywhere else self.host
        if ":" in name:
            name = f"[{name}]"
        return f"http://{name}:{self.port}/"

    def knows_host(self, name: str) -> bool:
        """Whether a name in a Host header is this machine's.

        An address cannot be another site's name; a name can, so only this machine's own are known.
        """
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

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        request = Request(scope)
        answer = self._answer(request)
        if answer is None:
            bounded = _bounded(receive, lambda: self._is_known(_cookie(request)))
            await self.app(scope, bounded, send_guarded)
        else:
            await answer(scope, receive, send_guarded)

    def _answer(self, request: Request) -> Response | None:
        """A refusal, or the cookie for whoever has a key; None for a request that may pass."""
        headers = request.headers
        try:
            is_ours = self.access.knows_host(_name_and_port(headers.get("host", ""))[0])
        except ValueError:
            is_ours = False
        if not is_ours:
            return PlainTextResponse("This is not the name of this machine.", 421)
        is_page = request.scope["path"] == "/"
        if is_page and request.method == "GET":
            secret = self._opened(request)
            if secret is not None:
                return _let_in(request, secret)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_page:
            return _forbidden("Another site has no business here.")
        cookie = _cookie(request)
        if not self._is_known(cookie):
            why = ""
            if "once" in request.query_params:
                why = LATE
            elif is_equal(cookie, self.access.once.cookie):
                why = TAKEN_BACK
            return _forbidden(OPEN_AGAIN + why)
        if request.method in ("GET", "HEAD"):
            return None
        if headers.get("origin") != f"http://{headers['host']}":
            return _forbidden("A change has to come from this page.")
        if not is_equal(headers.get("x-shoal-csrf", ""), self.access.csrf):
            return _forbidden("The page is of an earlier server; load it again.")
        if self.access.is_read_only:
            return _forbidden("This review is open for reading only.")
        length = headers.get("content-length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            return PlainTextResponse(f"A request may have up to {MAX_BODY:,} bytes.", 413)
        return None

    def _is_known(self, cookie: str) -> bool:
        once = self.access.once
        by_key = is_equal(cookie, once.cookie) and not once.is_taken_back
        return is_equal(cookie, self.access.token) or by_key

    def _opened(self, request: Request) -> str | None:
        """The cookie for whoever has the token, or the key of the browser that was started here."""
        if is_equal(request.query_params.get("token", ""), self.access.token):
            return self.access.token
        if self.access.once.opens(request.query_params.get("once", ""), _cookie(request)):
            return self.access.once.cookie
        return None


def is_equal(shown: str, secret: str) -> bool:
    """Compare in a time that tells nothing of the secret."""
    return secrets.compare_digest(shown.encode(), secret.encode())


def _forbidden(why: str) -> Response:
    return PlainTextResponse(why, 403)


def _let_in(request: Request, secret: str) -> Response:
    """Go to the page, with a cookie.

    Lax: a link on another page, in a chat for example, opens this one. No other request from there
    has it.
    """
    answer = PlainTextResponse("", 303, {"location": "/", "cache-control": "no-store"})
    cookie = f"{_cookie_name(request)}={secret}; Path=/; HttpOnly; SameSite=Lax"
    answer.headers["set-cookie"] = cookie
    return answer


def _name_and_port(host: str) -> tuple[str, int]:
    """What a Host header names; ValueError where it is none."""
    parts = urlsplit(f"//{host}")
    return parts.hostname or "", parts.port or HTTP_PORT


def _cookie_name(request: Request) -> str:
    """A name by the port that the browser sees, be it a tunnel's: ports of a machine share
    cookies.
    """
    return f"shoal-{_name_and_port(request.headers['host'])[1]}"


def _cookie(request: Request) -> str:
    """Our cookie among those of other programs on this machine."""
    return request.cookies.get(_cookie_name(request), "")


def _bounded(receive: Receive, is_known: Callable[[], bool]) -> Receive:
    """Receive no more than a request may have, whatever its header says.

    Nothing of one shut out meanwhile.
    """
    left = MAX_BODY

    async def receive_bounded() -> Message:
        nonlocal left
        message = await receive() if is_known() else {"type": "http.disconnect"}
        left -= len(message.get("body", b""))
        return message if left >= 0 and is_known() else {"type": "http.disconnect"}

    return receive_bounded


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
    family, other = socket.AF_INET, "192.0.2.1"
    if ":" in host:
        family, other = socket.AF_INET6, "2001:db8::1"
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((other, HTTP_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
