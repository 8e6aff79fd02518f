"""Access control: every request passes the guard before anything of the run is read.

A page on another site must not reach a run through the browser of a reviewer. So the Host header
must name this machine (against DNS rebinding), a change must come from this page (Origin) with a
secret that only this page has (against CSRF), and nothing is sent to browsers that have not opened
the printed address with its token.
"""

import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Maximum bytes of a request, which has at most a bit for each image, in each part of a split
MAX_BODY = 16 << 20

# Headers of every response, unless it has others of the same name
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class Access:
    """The address of a server and the secrets that a browser must present.

    Every server has a new token. A page that is still open would send a reused token to any program
    that takes the port in between.
    """

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    is_read_only: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        is_name = self.host == "localhost"
        return is_name or (_is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    @property
    def asks_who(self) -> bool:
        """Whether people must enter their name before they change anything."""
        return not self.is_loopback and not self.is_read_only

    @property
    def url(self) -> str:
        """The address with the token, to be printed."""
        return self._url(socket.gethostname())

    @property
    def local_url(self) -> str:
        """The address with the token for a browser on this machine."""
        return self._url("::1" if ":" in self.host else "127.0.0.1")

    def _url(self, name_if_any: str) -> str:
        # 0.0.0.0, 0, :: and ::0 are every address of this machine
        name = self.host if self.host.strip("0.:") else name_if_any
        if ":" in name:
            name = f"[{name}]"
        return f"http://{name}:{self.port}/?token={self.token}"

    def knows_host(self, name: str) -> bool:
        """Return whether a name in a Host header is this machine.

        An IP address cannot be the name of another site, so every address is accepted.
        """
        return _is_address(name) or name in self._names

    @cached_property
    def _names(self) -> list[str]:
        """The names of this machine; cached, since the lookup may take seconds."""
        names = ("localhost", self.host, socket.gethostname(), socket.getfqdn())
        return [name.casefold() for name in names]


def guarded(app: ASGIApp, access: Access) -> ASGIApp:
    """Return an application that refuses requests and adds security headers to every response."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        inside = _response(Request(scope), access) or app
        await inside(scope, receive, send_with_headers)

    return handle


def _response(request: Request, access: Access) -> Response | None:
    """Return a refusal, or the cookie for a browser with the token; None if allowed."""
    headers = request.headers
    try:
        is_ours = access.knows_host(_name_and_port(headers.get("host", ""))[0])
    except ValueError:
        is_ours = False
    if not is_ours:
        return PlainTextResponse("This is not the name of this machine.", 421)
    is_page = request.scope["path"] == "/"
    token = request.query_params.get("token", "")
    if is_page and request.method == "GET" and _is_equal(token, access.token):
        return _set_cookie(request, token)
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_page:
        return _forbidden("Requests from other sites are refused.")
    if not _is_equal(request.cookies.get(_cookie_name(request), ""), access.token):
        return _forbidden(
            "Open the address that `shoal review` printed, which contains the token. Then reload "
            "any page that was open before."
        )
    if request.method in ("GET", "HEAD"):
        return None
    if headers.get("origin") != f"http://{headers['host']}":
        return _forbidden("Changes must come from this page.")
    if not _is_equal(headers.get("x-shoal-csrf", ""), access.csrf):
        return _forbidden("The page belongs to an earlier server; reload it.")
    if access.is_read_only:
        return _forbidden("This review is read-only.")
    # The HTTP server reads no more than this header says.
    length = headers.get("content-length", "0")
    is_unknown = "transfer-encoding" in headers or not length.isdigit()
    if is_unknown or int(length) > MAX_BODY:
        return PlainTextResponse(f"A request may have up to {MAX_BODY:,} bytes.", 413)
    return None


def _is_equal(value: str, secret: str) -> bool:
    """Compare in constant time."""
    return secrets.compare_digest(value.encode(), secret.encode())


def _forbidden(why: str) -> Response:
    return PlainTextResponse(why, 403)


def _set_cookie(request: Request, token: str) -> Response:
    """Redirect to the page with a cookie.

    Lax: a link on another site, for example in a chat, opens the page; no other request from there
    has the cookie.
    """
    response = RedirectResponse("/", 303)
    response.set_cookie(_cookie_name(request), token, httponly=True, samesite="lax")
    return response


def _name_and_port(host: str) -> tuple[str, int]:
    """Return name and port of a Host header; ValueError for an invalid one."""
    parts = urlsplit(f"//{host}")
    return parts.hostname or "", parts.port or 80


def _cookie_name(request: Request) -> str:
    """Return a name with the port that the browser sees, since all ports of a host share
    cookies."""
    return f"shoal-{_name_and_port(request.headers['host'])[1]}"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
