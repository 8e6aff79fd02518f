"""Start and stop the server of a review."""

import contextlib
import logging
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import UsageError
from shoal.review.review import Review
from shoal.server.app import PageHandlers, make_app
from shoal.server.guard import Access
from shoal.server.pictures import Originals

PORT = 8765


def bind(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; without a port the default one, or any if that is taken."""
    if not host:  # e.g. an unset variable: the system would listen on every address
        raise UsageError("--host: found no address; 0.0.0.0 listens on every address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = PORT if port is None else port
    is_dual = ":" in host and socket.has_dualstack_ipv6()
    try:
        created = socket.create_server((host, wanted), family=family, dualstack_ipv6=is_dual)
    except OSError as error:
        if port is None:
            return bind(host, 0)
        raise UsageError(
            f"{host}:{wanted}: cannot listen there ({error.strerror}); give another --port or "
            "--host"
        ) from error
    # Explicitly TCP: only then asyncio sets TCP_NODELAY, without which small responses take 40 ms.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, created.detach())


@contextlib.contextmanager
def redirect_page(url: str) -> Iterator[Path]:
    """Write an HTML file that opens an address, readable by this account only.

    A browser is started with this file because other accounts can see the command, and must not
    see the token.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-review-") as folder:
        file = Path(folder) / "review.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={url}">', encoding="utf-8")
        yield file


def serve(review: Review, access: Access, listening: socket.socket, originals: Originals) -> None:
    """Serve a review until Ctrl-C; the page shows `originals` enlarged."""
    import uvicorn

    config = uvicorn.Config(
        make_app(PageHandlers(review, access, originals)),
        http="h11",  # limits headers to 64 KiB, which httptools does not
        timeout_graceful_shutdown=1,
        log_level=logging.ERROR,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
    )
    with listening:
        uvicorn.Server(config).run(sockets=[listening])
