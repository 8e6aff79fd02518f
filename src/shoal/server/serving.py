"""Starting and ending the server of a review."""

import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Sequence

from shoal.errors import UsageError
from shoal.review.review import Review
from shoal.server.app import PageHandlers, make_app
from shoal.server.guard import Access
from shoal.server.pictures import Originals

PORT = 8765
"""The port that is taken where it is free."""

BACKLOG = 128


def bind(host: str, port: int | None) -> socket.socket:
    """A socket to listen on; a port that nobody asked for may be another one.

    It is said to be TCP: asyncio sends small answers at once on such sockets alone, and 40 ms later
    on others.
    """
    # A variable that is not set, for example: the system would listen on every address.
    if not host:
        raise UsageError("--host: found no address; 0.0.0.0 is every one of this machine")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (PORT, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted))
            listener.listen(BACKLOG)
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if port is None and is_taken and wanted:
                continue  # another one is free
            raise UsageError(
                f"{host}:{wanted}: cannot be listened on ({error}); give another --port or --host"
            ) from error
    raise AssertionError("port 0 is bound or refused")


def serve(
    review: Review,
    access: Access,
    listening: socket.socket,
    started: Callable[[], None],
    originals: Originals,
    misfits: Sequence[str] = (),
) -> None:
    """Serve a review until Ctrl-C; `started` is called when the first request can come.

    The page shows `originals` enlarged, and tells of `misfits`, what of another review could not be
    done again.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

    handlers = PageHandlers(review, access, originals, misfits)
    config = uvicorn.Config(
        make_app(handlers),
        # reads at most 64 KiB of headers; httptools, where it is installed, any number of them
        http="h11",
        timeout_graceful_shutdown=1,
        log_level=logging.ERROR,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
    )
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(handlers.thumbnails), listening:
        Server(config).run(sockets=[listening])
