"""The review of a run for a browser: one page, what it shows, and the one way to change
anything.
"""

import asyncio
import hashlib
import json
import threading
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

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
from shoal.runs import UNSURE_BELOW, Run, Thumbnails, table_files
from shoal.server import columns
from shoal.server.guard import Access, Guard
from shoal.server.packing import pack_rows
from shoal.server.pictures import MAX_SIDE, SHARP_SIDES, Originals, packed
from shoal.server.requests import action_of, number, row_numbers, window_of
from shoal.server.search import Search
from shoal.text import shown

TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
"""Files of the page by their endings."""

WAIT_S = 20.0
"""Seconds that a question for changes is held open."""

LOOK_S = 0.2
"""Seconds between two looks at the log, to which another process may have added."""

# The address of a picture has the version of its run: the next run is served at the same one.
FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
NEVER = {"cache-control": "no-store"}


def make_app(handlers: "PageHandlers") -> Guard:
    """The application, behind its guard."""
    routes = [
        Route("/", handlers.page),
        Route("/static/{name}", handlers.static),
        Route("/thumbnails", handlers.pictures),
        Route("/image/{row:int}", handlers.original),
        Route("/api/run", handlers.about),
        Route("/api/columns", handlers.state),
        Route("/api/images", handlers.images),
        Route("/api/similar", handlers.similar),
        Route("/api/candidates", handlers.candidates),
        Route("/api/merges", handlers.merges),
        Route("/api/parts", handlers.parts),
        Route("/api/paths", handlers.paths),
        Route("/api/map", handlers.map),
        Route("/api/changes", handlers.changes),
        Route("/api/act", handlers.act, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={ShoalError: _refused})
    return Guard(app, handlers.access)


class PageHandlers:
    """Answers what the page asks.

    Starlette calls each in a thread, but for those that wait, and `_refused` where one raises.
    """

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
        """Compute, while the browser loads the page, what it and the first action ask for."""
        answer = self.review.state
        _ = answer.typical_order, answer.checksum

    def page(self, _request: Request) -> Response:
        """The page itself, which holds nothing of the run."""
        return Response(_static()["index.html"], media_type="text/html", headers=NEVER)

    def static(self, request: Request) -> Response:
        """A part of the page."""
        name = request.path_params["name"]
        if name not in _static():
            return Response("not here", 404)
        media = TYPES[name.rpartition(".")[2]]
        return Response(_static()[name], media_type=media, headers={"cache-control": "no-cache"})

    def about(self, request: Request) -> Response:
        """What the page has to know before it draws anything."""
        with self.review.lock:
            self.review.refresh()
            run = self.review.run
            state = self.review.state
            who = self._who(request)
            changed = columns.changes(self.review, state.seq, who, _window(request))
            entries = state.entries[-columns.MAX_ENTRIES :]
            facts = {
                "version": _version(run, self.originals.root),
                "title": shown(run.path.resolve().name),
                "n_images": len(self.review.state),
                "statuses": STATUSES,
                "sure": columns.SURE,
                "unsure_below": UNSURE_BELOW,
                "who": who,
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
                "seq": state.seq,
                "undo": changed["undo"],
                "redo": changed["redo"],
                "distinct": columns.distinct_pairs(state),
                "entries": [columns.entry_words(state, entry) for entry in entries],
            }
            return _json(facts)

    def state(self, _request: Request) -> Response:
        """Every image's category and status; its first number is the action it is of."""
        with self.review.lock:
            head = self.review.state.seq.to_bytes(4, "little")
            return _binary(head + columns.columns(self.review), NEVER)

    def images(self, request: Request) -> Response:
        """Some images in words."""
        return _json(columns.images(self.review, self._rows(request)))

    def pictures(self, request: Request) -> Response:
        """Some thumbnails in one answer.

        `sharp`, so many pixels, draws them anew from the originals.
        """
        rows = self._rows(request)
        side = number(request.query_params.get("sharp", "0"))
        if side or not self.thumbnails.is_there:
            least, most = SHARP_SIDES
            images = [self._sharp(row, min(max(side, least), most)) for row in rows]
        else:
            images = self.thumbnails.get(rows)
        kept = FOREVER if all(images) else NEVER  # what failed may be there the next time
        return _binary(packed(images), kept)

    def _sharp(self, row: int, side: int) -> bytes:
        try:
            return self.originals.get(row, side)
        except ShoalError:
            return b""

    def original(self, request: Request) -> Response:
        """The image of a row as it is in the collection; `whole` has all of its pixels."""
        row = request.path_params["row"]
        if not 0 <= row < len(self.review.state):
            return Response("no such image", 404)
        if "whole" in request.query_params:
            image = self.originals.whole(row)
        else:
            image = self.originals.get(row, MAX_SIDE)
        return Response(image, media_type="image/jpeg", headers=FOREVER)

    def similar(self, request: Request) -> Response:
        """Images like one."""
        row = number(request.query_params.get("row"))
        if not 0 <= row < len(self.review.state):
            raise UsageError(f"row {row}: there is none")
        return _json(self.search.similar(row))

    def candidates(self, request: Request) -> Response:
        """Images that a category may grow by."""
        return _json(self.search.candidates(self._category(request)))

    def merges(self, _request: Request) -> Response:
        """Pairs of categories that look like one."""
        return _json(self.search.merges())

    def parts(self, request: Request) -> Response:
        """A category in parts."""
        n_parts = number(request.query_params.get("parts"))
        return _json(self.search.parts(self._category(request), n_parts))

    def paths(self, request: Request) -> Response:
        """Images by a part of their path."""
        text = request.query_params.get("text", "")
        if not text:
            return _json([])
        return _json(pack_rows(self.search.paths(text), len(self.review.state)))

    def map(self, _request: Request) -> Response:
        """Where a sample of the images lies."""
        return _binary(self.search.map, NEVER)

    async def changes(self, request: Request) -> Response:
        """What others have done since an action.

        Waits a while for something to tell, unless `now` is given.
        """
        since = number(request.query_params.get("since"))
        window = _window(request)
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
                who = self._who(request)
                return _json(
                    await run_in_threadpool(columns.changes, self.review, since, who, window)
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
        except UsageError:
            raise
        except (ValueError, TypeError, AttributeError, RecursionError, ClientDisconnect) as error:
            raise UsageError(f"The request cannot be read ({error}).") from error
        return await run_in_threadpool(self._do, asked, by, base, window)

    def _do(self, asked: dict[str, object], by: str, base: int, window: Window | None) -> Response:
        refusal = {}
        kind = asked.get("action")
        try:
            if kind in ("undo", "redo") and "of" not in asked:
                self.review.again(str(kind), by=by, base=base, window=window)
            else:
                name = window.name if window else ""
                self.review.act(
                    lambda state: action_of(state, asked), by=by, base=base, window=name
                )
        except Conflict as error:
            refusal = {"error": str(error)}
        answer = {**refusal, **columns.changes(self.review, base, by, window)}
        return _json(answer, 409 if refusal else 200)

    def _named(self, by: str | None) -> str:
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
        if by is None and self.access.asks_who:
            return ""
        return checked_who(by)

    def _rows(self, request: Request) -> list[int]:
        return row_numbers(request.query_params.get("rows", ""), len(self.review.state))

    def _category(self, request: Request) -> int:
        category = number(request.query_params.get("category"))
        if category not in self.review.state.categories:
            raise UsageError(f"category {category}: there is none")
        return category


def _refused(_request: Request, error: Exception) -> Response:
    """What a user can cause is a sentence."""
    return _json({"error": str(error)}, 400)


def _window(request: Request) -> Window | None:
    asked = request.query_params
    return window_of(asked.get("window"), number(asked.get("opened", "0")))


def _version(run: Run, images: Path | None) -> str:
    """Another one for another run or folder of images, and for a run that was made anew."""
    text = f"{run.path.resolve()} {images or ''} {table_files(run.path)[-1].stat().st_mtime_ns}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _binary(content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type="application/octet-stream", headers=headers)


def _json(content: object, status: int = 200) -> Response:
    """JSON without spaces.

    Names with half a character, which a file system may have, are written as codes.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json", headers=NEVER)


@cache
def _static() -> dict[str, bytes]:
    """The files of the page by name; nothing else is served."""
    found = [*(files("shoal.server") / "page").iterdir()]
    found.append(files("shoal.report") / "templates" / "theme.css")
    return {file.name: file.read_bytes() for file in found if file.name.rpartition(".")[2] in TYPES}
