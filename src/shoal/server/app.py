"""The web application of a review: the page, the data it shows, one route for all changes, and the
server that runs it."""

import asyncio
import contextlib
import json
import logging
import mimetypes
import secrets
import socket
import tempfile
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from shoal.arrays import Ints
from shoal.errors import ShoalError, UsageError, shown
from shoal.review.actions import STATUSES, UNREADABLE, Action, encode, parse_action
from shoal.review.effects import STATUS_OF
from shoal.review.review import Review, checked_who
from shoal.review.state import State
from shoal.review.verbs import decision
from shoal.runs import THUMBNAILS, UNCERTAIN_BELOW
from shoal.server import page_data
from shoal.server.guard import Access, guarded
from shoal.server.page_data import MAX_SIDE, SHARP_SIDES, Originals
from shoal.server.search import Search

# Seconds to hold a request for changes open
WAIT_S = 20.0

# Seconds between two checks of the log, to which another process may have added
POLL_S = 0.2

# Maximum number of likely categories that are suggested for the selected images
MAX_TARGETS = 12

# Maximum number of images per request
MAX_ROWS = 256

# Maximum number of characters in the random id of an open page
MAX_WINDOW = 40

# The URL of a picture contains the version of this server process, so it can be cached forever:
# another process uses other URLs.
CACHED = {"cache-control": "private, max-age=31536000, immutable"}

PORT = 8765


def make_app(handlers: "PageHandlers") -> ASGIApp:
    """Return the application, behind its guard."""
    mimetypes.add_type("text/javascript", ".js")  # programs on Windows may have changed it

    def answer(query: Callable[[QueryParams], object]) -> Callable[[Request], Response]:
        return lambda request: _json(query(request.query_params))

    routes = [
        Route("/", handlers.page),
        # theme.css comes from the report's templates
        Mount(
            "/static",
            StaticFiles(packages=[("shoal.server", "page"), ("shoal.report", "templates")]),
        ),
        Route("/thumbnails", handlers.pictures),
        Route("/image/{row}", handlers.original),
        Route("/api/columns", handlers.columns),
        Route("/api/changes", handlers.changes),
        Route("/api/act", handlers.act, methods=["POST"]),
        *(Route(f"/api/{name}", answer(query)) for name, query in handlers.queries().items()),
    ]
    app = Starlette(routes=routes, exception_handlers={ShoalError: _bad_request})
    return guarded(app, handlers.access)


class PageHandlers:
    """The handlers of all routes; Starlette runs those that are not async in threads."""

    def __init__(self, review: Review, access: Access, originals: Originals) -> None:
        self.review = review
        self.access = access
        self.originals = originals
        self.search = Search(review)
        self.version = secrets.token_hex(8)
        threading.Thread(target=self._prepare, daemon=True).start()

    def queries(self) -> dict[str, Callable[[QueryParams], object]]:
        """Return what answers each data request: from the parameters of its URL to JSON."""
        search = self.search
        return {
            "run": self.about,
            "images": lambda params: page_data.images(self.review, self._rows(params)),
            "boxes": lambda params: self.originals.boxes(self._row(params.get("row"))),
            "dates": lambda _: page_data.by_date(self.originals.dates),
            "similar": lambda params: search.similar(self._row(params.get("row"))),
            "near-duplicates": lambda _: search.near_duplicates(),
            "candidates": lambda params: search.candidates(self._category(params)),
            "merges": lambda _: search.merges(),
            "tree": lambda _: search.tree(),
            "targets": lambda params: search.targets(self._rows(params))[:MAX_TARGETS],
            "parts": lambda params: search.parts(
                self._category(params), number(params.get("parts"))
            ),
            "paths": lambda params: search.paths(params.get("text", "")),
            "map": lambda params: search.layout(params.get("layout", "")),
        }

    def _prepare(self) -> None:
        """Compute what the page and the first action need while the browser loads the page."""
        state = self.review.state
        _ = state.typical_order, state.checksum, state.encoded_paths

    def page(self, _request: Request) -> Response:
        """Return the page, which contains no data of the run."""
        page = files("shoal.server") / "page" / "index.html"
        return Response(page.read_bytes(), media_type="text/html")

    def about(self, params: QueryParams) -> dict[str, object]:
        """Return what the page needs before it draws anything."""
        with self.review.lock:
            self.review.refresh()
            run = self.review.run
            state = self.review.state
            who = self._who(params.get("by"))
            actions = state.actions[-page_data.MAX_ENTRIES :]
            return page_data.changes(self.review, state.seq, who) | {
                "version": self.version,
                "title": shown(run.path.resolve().name),
                "n_images": len(state),
                "statuses": STATUSES,
                "confidence_scale": page_data.CONFIDENCE_SCALE,
                "uncertain_below": UNCERTAIN_BELOW,
                "who": who,
                "asks_who": self.access.asks_who,
                "csrf": self.access.csrf,
                "read_only": self.access.is_read_only,
                "has": {
                    "thumbnails": run.has(THUMBNAILS),
                    "originals": not self.originals.missing,
                },
                "originals_missing": self.originals.missing,
                "categories": page_data.categories(self.review),
                "entries": [page_data.entry_fields(state, action) for action in actions],
            }

    def columns(self, _request: Request) -> Response:
        """Return the number of the last action (4 bytes) and the columns of all images."""
        with self.review.lock:
            head = self.review.state.seq.to_bytes(4, "little")
            return _binary(head + page_data.columns(self.review))

    def pictures(self, request: Request) -> Response:
        """Return some thumbnails in one response: their number and sizes (little-endian u4), then
        their bytes. `sharp`, a side length in pixels, asks for larger ones."""
        rows = self._rows(request.query_params)
        side = number(request.query_params.get("sharp", "0"))
        if side or not self.review.run.has(THUMBNAILS):
            smallest, largest = SHARP_SIDES
            images = [self._sharp(row, min(max(side, smallest), largest)) for row in rows]
        else:
            images = list(self.review.run.thumbnails(rows))
        # A picture that could not be read may be there the next time.
        sizes = np.array([len(images), *map(len, images)], dtype="<u4").tobytes()
        return _binary(sizes + b"".join(images), CACHED if all(images) else None)

    def _sharp(self, row: int, side: int) -> bytes:
        try:
            return self.originals.get(row, side)
        except ShoalError:
            return b""

    def original(self, request: Request) -> Response:
        """Return the original image of a row; `whole` asks for all of its pixels, `around` for the
        image that a box is in."""
        row = self._row(request.path_params["row"])
        is_around = "around" in request.query_params
        if "whole" in request.query_params:
            image = self.originals.whole(row, is_around=is_around)
        else:
            image = self.originals.get(row, MAX_SIDE, is_around)
        return Response(image, media_type="image/jpeg", headers=CACHED)

    async def changes(self, request: Request) -> Response:
        """Return what changed after action `since`; wait for a change unless `now` is given."""
        since = number(request.query_params.get("since"))
        clock = asyncio.get_running_loop().time
        until = clock()
        if "now" not in request.query_params:
            until += WAIT_S
        while True:
            if self.review.log.has_more:
                await run_in_threadpool(self.review.refresh)
            if await request.is_disconnected():
                return Response()
            if self.review.state.seq > since or clock() >= until:
                who = self._who(request.query_params.get("by"))
                return _json(await run_in_threadpool(page_data.changes, self.review, since, who))
            await asyncio.sleep(POLL_S)

    async def act(self, request: Request) -> Response:
        """Apply an action; `base` is the last action that the page has shown."""
        try:
            body = json.loads(await request.body())
            base = body.get("base")
            if type(base) is not int:
                raise TypeError("base")
        except (ValueError, TypeError, AttributeError, RecursionError, ClientDisconnect) as error:
            raise UsageError(f"The request cannot be read ({error}).") from error
        return await run_in_threadpool(self._act, body, base)

    def _act(self, body: dict[str, object], base: int) -> Response:
        who = self._who(body.get("by"))
        if not who:
            raise UsageError("Enter your name first, with the button at the top.")
        window = str(body.get("window", ""))[:MAX_WINDOW]
        try:
            self.review.act(requested_action, body, who, by=who, base=base, window=window)
        except UsageError as error:  # perhaps because of what others have done
            news = page_data.changes(self.review, base, who)
            return _json({"error": str(error), **news}, 409)
        return _json(page_data.changes(self.review, base, who))

    def _who(self, by: object) -> str:
        """Return the name of the person making a request; empty if the page has to ask for the
        name."""
        if not by and self.access.asks_who:
            return ""
        return checked_who(str(by) if by else None)

    def _rows(self, params: QueryParams) -> list[int]:
        """Return the rows of a list such as '3,5,8'."""
        parts = params.get("rows", "").split(",")
        if len(parts) > MAX_ROWS:
            raise UsageError(f"rows: expected up to {MAX_ROWS} numbers")
        return [self._row(part) for part in parts if part]

    def _row(self, text: str | None) -> int:
        row = number(text)
        n_images = len(self.review.state)
        if not 0 <= row < n_images:
            raise UsageError(f"row: found {row}, expected 0 to {n_images - 1}")
        return row

    def _category(self, params: QueryParams) -> int:
        category = number(params.get("category"))
        self.review.state.existing(category)
        return category


def number(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError as error:
        raise UsageError(f"found {str(text)[:20]!r}, expected an integer") from error


def requested_action(state: State, request: Mapping[str, Any], who: str) -> Action:
    """Return the action that the page requests.

    An undo without `of` undoes the last action of the person `who`, a redo the one undone last.

    A request has the fields of a log line, with a bit for each image instead of paths. The images
    grouped by category and the ids of new categories are added here, because they depend on the
    current state.
    """
    kind = str(request.get("action"))
    if kind in ("undo", "redo") and "of" not in request:
        return state.undo_or_redo(kind, who)
    fields = dict(request)
    try:
        if kind in STATUS_OF:
            return decision(state, kind, _images(state, request["images"]))
        if kind == "create":
            fields["category"] = state.next_id
        if kind == "split":
            fields["parts"] = [
                {**part, "category": number}
                for number, part in enumerate(request["parts"], start=state.next_id)
            ]
        return parse_action(kind, fields, partial(_images, state))
    except (KeyError, TypeError) as error:
        raise UsageError(f"{kind[:40]}: {UNREADABLE} ({error})") from error


def _images(state: State, images: str) -> Ints:
    """Return the rows of the images whose bits are set, ascending."""
    try:
        content = b64decode(images, validate=True)
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        if bits[len(state) :].any():
            raise ValueError
    except (TypeError, ValueError):
        raise UsageError("images: expected a bit for each image, in base64") from None
    return np.flatnonzero(bits)


def _bad_request(_request: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 400)


def _binary(content: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(content, media_type="application/octet-stream", headers=headers)


def _json(content: object, status: int = 200) -> Response:
    return Response(encode(content), status, media_type="application/json")


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
