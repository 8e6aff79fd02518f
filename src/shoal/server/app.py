"""The review of a run for a browser: one page, what it shows, and the one way to change anything."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.errors import ShoalError, UsageError
from shoal.review.actions import STATUSES
from shoal.review.history import Window
from shoal.review.review import Review, checked_who
from shoal.review.state import Conflict
from shoal.runs import UNSURE_BELOW, RunView, Thumbnails, table_files
from shoal.server import columns
from shoal.server.guard import Access, App, Guard
from shoal.server.packing import pack_rows
from shoal.server.pictures import MAX_SIDE, SHARP_SIDES, Originals, packed
from shoal.server.requests import action_of, number, row_numbers, window_of
from shoal.server.search import Search
from shoal.text import shown

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

WAIT_S = 20.0
"""Seconds that a question for changes is held open."""

LOOK_S = 0.2
"""Seconds between two looks at the log, to which another process may have added."""

# The address of a picture has the version of its run, because the next run is served at the same
# one.
FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
NEVER = {"cache-control": "no-store"}


def make_app(handlers: "PageHandlers") -> App:
    """The application, behind its guard."""
    routes = [
        Route("/", handlers.page),
        Route("/static/{name}", handlers.static),
        Route("/thumbnails", handlers.pictures),
        Route("/image/{row:int}", handlers.original),
        Route("/api/run", handlers.answering(handlers.about)),
        Route("/api/columns", handlers.state),
        Route("/api/images", handlers.answering(handlers.images)),
        Route("/api/similar", handlers.answering(handlers.similar)),
        Route("/api/candidates", handlers.answering(handlers.candidates)),
        Route("/api/merges", handlers.answering(handlers.merges)),
        Route("/api/parts", handlers.answering(handlers.parts)),
        Route("/api/paths", handlers.answering(handlers.paths)),
        Route("/api/map", handlers.map),
        Route("/api/changes", handlers.changes),
        Route("/api/act", handlers.act, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), handlers.access)


class PageHandlers:
    """Answers what the page asks."""

    def __init__(
        self, review: Review, access: Access, originals: Originals, misfits: Sequence[str] = ()
    ) -> None:
        self.review = review
        self.access = access
        self.misfits = misfits
        self.thumbnails = Thumbnails(review.run.path)
        self.originals = originals
        self.search = Search(review)
        threading.Thread(target=self._prepare, daemon=True).start()

    def _prepare(self) -> None:
        """Compute, while the browser loads the page, what it and the first action ask for: seconds for a million."""
        answer = self.review.answer
        _ = answer.typical_order, answer.checksum

    def answering(self, find: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """An answer as JSON, found in a thread; what a user can cause is a sentence."""

        async def answer(request: Request) -> Response:
            return await _guarded(lambda: _json(find(request)))

        return answer

    async def page(self, _request: Request) -> Response:
        """The page itself, which holds nothing of the run."""
        return Response(_static("index.html"), media_type="text/html", headers=NEVER)

    async def static(self, request: Request) -> Response:
        """A part of the page."""
        name = request.path_params["name"]
        if name not in _names():
            return Response("not here", 404)
        media = TYPES[f".{name.rpartition('.')[2]}"]
        return Response(_static(name), media_type=media, headers={"cache-control": "no-cache"})

    def about(self, request: Request) -> dict[str, Any]:
        """What the page has to know before it draws anything."""
        with self.review.lock:
            self.review.refresh()
            run = self.review.run
            changed = columns.changes(
                self.review, self.review.state.seq, self._who(request), _window(request)
            )
            entries = self.review.state.entries[-columns.MAX_ENTRIES :]
            return {
                "version": _version(run, self.originals.root),
                "title": shown(run.path.resolve().name),
                "n_images": len(self.review.answer),
                "statuses": STATUSES,
                "sure": columns.SURE,
                "unsure_below": UNSURE_BELOW,
                "who": self._who(request),
                "asks_who": self.access.asks_who,
                "csrf": self.access.csrf,
                "read_only": self.access.is_read_only,
                "has": {
                    "thumbnails": self.thumbnails.is_there,
                    "originals": self.originals.is_there,
                },
                "originals_missing": self.originals.missing,
                "categories": columns.categories(self.review),
                "does_not_fit": [shown(words) for words in self.misfits[: columns.MAX_ENTRIES]],
                "seq": self.review.state.seq,
                "undo": changed["undo"],
                "redo": changed["redo"],
                "distinct": columns.distinct_pairs(self.review.state),
                "entries": [columns.entry_words(self.review.state, entry) for entry in entries],
            }

    async def state(self, _request: Request) -> Response:
        """Every image's category and status; its first number is the action it is of."""

        def find() -> Response:
            with self.review.lock:
                head = self.review.state.seq.to_bytes(4, "little")
                return _binary(head + columns.columns(self.review), NEVER)

        return await _guarded(find)

    def images(self, request: Request) -> Any:
        """Some images in words."""
        return columns.images(self.review, self._rows(request))

    async def pictures(self, request: Request) -> Response:
        """Some thumbnails in one answer.

        `sharp`, so many pixels, draws them anew from the originals.
        """

        def find() -> Response:
            rows = self._rows(request)
            side = number(request.query_params.get("sharp", "0"))
            is_drawn = side or not self.thumbnails.is_there
            images = self._sharp(rows, side) if is_drawn else self.thumbnails.get(rows)
            kept = FOREVER if all(images) else NEVER  # what failed may be there the next time
            return _binary(packed(images), kept)

        return await _guarded(find)

    def _sharp(self, rows: list[int], side: int) -> list[bytes]:
        drawn = []
        (least, most) = SHARP_SIDES
        for row in rows:
            try:
                drawn.append(self.originals.get(row, min(max(side, least), most)))
            except ShoalError:
                drawn.append(b"")
        return drawn

    async def original(self, request: Request) -> Response:
        """The image of a row as it is in the collection; `whole` has all of its pixels."""
        row = request.path_params["row"]
        if not 0 <= row < len(self.review.answer):
            return Response("no such image", 404)

        def find() -> Response:
            is_whole = "whole" in request.query_params
            image = self.originals.whole(row) if is_whole else self.originals.get(row, MAX_SIDE)
            return Response(image, media_type="image/jpeg", headers=FOREVER)

        return await _guarded(find)

    def similar(self, request: Request) -> Any:
        """Images like one."""
        row = number(request.query_params.get("row"))
        if not 0 <= row < len(self.review.answer):
            raise UsageError(f"row {row}: there is none")
        return self.search.similar(row)

    def candidates(self, request: Request) -> Any:
        """Images that a category may grow by."""
        return self.search.candidates(self._category(request))

    def merges(self, _request: Request) -> Any:
        """Pairs of categories that look like one."""
        return self.search.merges()

    def parts(self, request: Request) -> Any:
        """A category in parts."""
        return self.search.parts(self._category(request), number(request.query_params.get("parts")))

    def paths(self, request: Request) -> Any:
        """Images by a part of their path."""
        text = request.query_params.get("text", "")
        return pack_rows(self.search.paths(text), len(self.review.answer)) if text else []

    async def map(self, _request: Request) -> Response:
        """Where a sample of the images lies."""
        return await _guarded(lambda: _binary(self.search.map, NEVER))

    async def changes(self, request: Request) -> Response:
        """What others have done since an action.

        Waits a while for something to tell, unless `now` is given.
        """
        try:
            since = number(request.query_params.get("since"))
            window = _window(request)
        except UsageError as error:
            return _json({"error": str(error)}, 400)
        until = asyncio.get_running_loop().time() + (0 if "now" in request.query_params else WAIT_S)
        while True:
            try:
                if self.review.log.has_more:
                    await run_in_threadpool(self.review.refresh)
            except ShoalError as error:  # somebody has damaged the log
                return _json({"error": str(error)}, 400)
            if await request.is_disconnected():
                return Response()
            if self.review.state.seq > since or asyncio.get_running_loop().time() >= until:
                return await _guarded(
                    lambda: _json(columns.changes(self.review, since, self._who(request), window))
                )
            await asyncio.sleep(LOOK_S)

    async def act(self, request: Request) -> Response:
        """Do something: what, by whom, and which action they had seen last."""
        try:
            asked = json.loads(await request.body())
            base = asked.get("base")
            by = self._named(asked.get("by"))
            if type(base) is not int or not isinstance(asked, dict):
                raise TypeError("base")
            window = window_of(asked.get("window"), asked.get("opened"))
        except UsageError as error:
            return _json({"error": str(error)}, 400)
        except (ValueError, TypeError, AttributeError, RecursionError, ClientDisconnect) as error:
            return _json({"error": f"The request cannot be read ({error})."}, 400)

        def do() -> Response:
            try:
                self._do(asked, by, base, window)
            except Conflict as error:
                return _json(
                    {"error": str(error), **columns.changes(self.review, base, by, window)}, 409
                )
            except ShoalError as error:
                return _json({"error": str(error)}, 400)
            return _json(columns.changes(self.review, base, by, window))

        return await _guarded(do)

    def _do(self, asked: dict[str, Any], by: str, base: int, window: Window | None) -> None:
        if asked.get("action") in ("undo", "redo") and "of" not in asked:
            self.review.again(asked["action"], by=by, base=base, window=window)
        else:
            name = window.name if window else ""
            self.review.act(lambda state: action_of(state, asked), by=by, base=base, window=name)

    def _named(self, by: Any) -> str:
        """Check the name of who acts.

        Without one it is the account of the server, unless several people may act.
        """
        if not by and self.access.asks_who:
            raise UsageError(
                "Say who you are first: the button with your name, at the top, asks for it."
            )
        return checked_who(by)

    def _who(self, request: Request) -> str:
        by = request.query_params.get("by") or None
        return "" if by is None and self.access.asks_who else checked_who(by)

    def _rows(self, request: Request) -> list[int]:
        return row_numbers(request.query_params.get("rows", ""), len(self.review.answer))

    def _category(self, request: Request) -> int:
        category = number(request.query_params.get("category"))
        if category not in self.review.state.categories:
            raise UsageError(f"category {category}: there is none")
        return category


async def _guarded(find: Callable[[], Response]) -> Response:
    try:
        return await run_in_threadpool(find)
    except ShoalError as error:
        return _json({"error": str(error)}, 400)


def _window(request: Request) -> Window | None:
    asked = request.query_params
    return window_of(asked.get("window"), number(asked.get("opened", "0")))


def _version(run: RunView, images: Path | None) -> str:
    """Another one for another run or folder of images, and for a run that was made anew."""
    text = f"{run.path.resolve()} {images or ''} {table_files(run.path)[-1].stat().st_mtime_ns}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _binary(content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type="application/octet-stream", headers=headers)


def _json(content: Any, status: int = 200) -> Response:
    return Response(columns.dumped(content), status, media_type="application/json", headers=NEVER)


@cache
def _names() -> frozenset[str]:
    """The files of the page."""
    names = {file.name for file in (files("shoal.server") / "page").iterdir()} | {"theme.css"}
    return frozenset(name for name in names if f".{name.rpartition('.')[2]}" in TYPES)


@cache
def _static(name: str) -> bytes:
    if name == "theme.css":
        return (files("shoal.report") / "templates" / name).read_bytes()
    return (files("shoal.server") / "page" / name).read_bytes()
