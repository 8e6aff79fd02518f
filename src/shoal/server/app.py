"""The web application of a review: the page, the data it shows, and one route for all changes."""

import asyncio
import hashlib
import json
import mimetypes
import threading
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shoal.errors import ShoalError, UsageError
from shoal.review.actions import STATUSES
from shoal.review.review import Review, checked_who, table_version
from shoal.review.state import Conflict
from shoal.runs import UNCERTAIN_BELOW, Run, Thumbnails
from shoal.server import page_data
from shoal.server.guard import Access, Guard
from shoal.server.map_positions import MapPositions
from shoal.server.pictures import MAX_SIDE, SHARP_SIDES, Originals, packed
from shoal.server.requests import number, requested_action, row_numbers
from shoal.server.search import Search
from shoal.text import shown

WAIT_S = 20.0
"""Seconds that a request for changes is held open."""

POLL_S = 0.2
"""Seconds between two checks of the log, to which another process may have added."""

MAX_TARGETS = 12
"""Maximum number of likely categories for some images."""

MAX_WINDOW = 40
"""Maximum number of characters in the name of a page."""

# The address of a picture contains a version of its run, so that another run has other addresses.
CACHED = {"cache-control": "private, max-age=31536000, immutable"}


def make_app(handlers: "PageHandlers") -> Guard:
    """Return the application, behind its guard."""
    mimetypes.add_type("text/javascript", ".js")  # programs on Windows may have changed it
    routes = [
        Route("/", handlers.page),
        # theme.css is that of the report
        Mount(
            "/static",
            StaticFiles(packages=[("shoal.server", "page"), ("shoal.report", "templates")]),
        ),
        Route("/thumbnails", handlers.pictures),
        Route("/image/{row}", handlers.original),
        Route("/api/run", handlers.about),
        Route("/api/columns", handlers.columns),
        Route("/api/images", handlers.images),
        Route("/api/boxes", handlers.boxes),
        Route("/api/similar", handlers.similar),
        Route("/api/near-duplicates", handlers.near_duplicates),
        Route("/api/candidates", handlers.candidates),
        Route("/api/merges", handlers.merges),
        Route("/api/tree", handlers.tree),
        Route("/api/targets", handlers.targets),
        Route("/api/parts", handlers.parts),
        Route("/api/paths", handlers.paths),
        Route("/api/map", handlers.map),
        Route("/api/changes", handlers.changes),
        Route("/api/act", handlers.act, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={ShoalError: _bad_request})
    return Guard(app, handlers.access)


class PageHandlers:
    """The handlers of all routes; Starlette runs those that are not async in threads."""

    def __init__(
        self, review: Review, access: Access, originals: Originals, not_applied: Sequence[str]
    ) -> None:
        self.review = review
        self.access = access
        self.not_applied = not_applied
        self.thumbnails = Thumbnails(review.run.path)
        self.originals = originals
        self.search = Search(review)
        self.positions = MapPositions(self.search)
        threading.Thread(target=self._prepare, daemon=True).start()

    def _prepare(self) -> None:
        """Compute what the page and the first action need while the browser loads the page."""
        state = self.review.state
        _ = state.typical_order, state.checksum

    def page(self, _request: Request) -> Response:
        """Return the page, which contains nothing of the run."""
        page = files("shoal.server") / "page" / "index.html"
        return Response(page.read_bytes(), media_type="text/html")

    def about(self, request: Request) -> Response:
        """Return what the page needs before it draws anything."""
        with self.review.lock:
            self.review.refresh()
            run = self.review.run
            state = self.review.state
            who = self._who(request.query_params.get("by"))
            actions = state.actions[-page_data.MAX_ENTRIES :]
            facts = page_data.changes(self.review, state.seq, who) | {
                "version": _version(run, self.originals.root),
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
                    "thumbnails": self.thumbnails.file.is_file(),
                    "originals": self.originals.is_available,
                },
                "originals_missing": self.originals.missing,
                "categories": page_data.categories(self.review),
                "not_applied": [shown(text) for text in self.not_applied[: page_data.MAX_ENTRIES]],
                "entries": [page_data.entry_fields(state, action) for action in actions],
            }
            return _json(facts)

    def columns(self, _request: Request) -> Response:
        """Return the number of the last action (4 bytes) and the columns of all images."""
        with self.review.lock:
            head = self.review.state.seq.to_bytes(4, "little")
            return _binary(head + page_data.columns(self.review))

    def images(self, request: Request) -> Response:
        """Return the details of some images."""
        return _json(page_data.images(self.review, self._rows(request)))

    def pictures(self, request: Request) -> Response:
        """Return some thumbnails in one response; `sharp` asks for larger ones, in pixels."""
        rows = self._rows(request)
        side = number(request.query_params.get("sharp", "0"))
        if side or not self.thumbnails.file.is_file():
            smallest, largest = SHARP_SIDES
            images = [self._sharp(row, min(max(side, smallest), largest)) for row in rows]
        else:
            images = self.thumbnails.get(rows)
        # A picture that could not be read may be there the next time.
        return _binary(packed(images), CACHED if all(images) else None)

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

    def boxes(self, request: Request) -> Response:
        """Return the boxes of the image that a box is in, and the size of that image."""
        row = self._row(request.query_params.get("row", ""))
        size, boxes = self.originals.boxes(row)
        return _json({"size": size, "boxes": [[other, *box] for other, box in boxes.items()]})

    def similar(self, request: Request) -> Response:
        """Return the images most similar to one."""
        return _json(self.search.similar(self._row(request.query_params.get("row", ""))))

    def near_duplicates(self, _request: Request) -> Response:
        """Return images that look almost the same as another one of their category."""
        return _json(self.search.near_duplicates())

    def candidates(self, request: Request) -> Response:
        """Return images that may belong to a category."""
        return _json(self.search.candidates(self._category(request)))

    def merges(self, _request: Request) -> Response:
        """Return pairs of categories that may be the same."""
        return _json(self.search.merges())

    def tree(self, _request: Request) -> Response:
        """Return the tree of categories."""
        return _json(self.search.tree())

    def targets(self, request: Request) -> Response:
        """Return the categories that some images most likely belong to."""
        rows = self._rows(request)
        return _json(self.search.targets(rows)[:MAX_TARGETS] if rows else [])

    def parts(self, request: Request) -> Response:
        """Return the parts into which a category can be split."""
        n_parts = number(request.query_params.get("parts", ""))
        return _json(self.search.parts(self._category(request), n_parts))

    def paths(self, request: Request) -> Response:
        """Return the images whose path contains a text."""
        return _json(self.search.paths(request.query_params.get("text", "")))

    def map(self, request: Request) -> Response:
        """Return the positions of a sample of images on the map, by `layout` or the best known."""
        return _json(self.positions.layout(request.query_params.get("layout", "")))

    async def changes(self, request: Request) -> Response:
        """Return what changed after action `since`; wait for a change unless `now` is given."""
        since = number(request.query_params.get("since", ""))
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
        except Conflict as error:
            news = page_data.changes(self.review, base, who)
            return _json({"error": str(error), **news}, 409)
        return _json(page_data.changes(self.review, base, who))

    def _who(self, by: object) -> str:
        """Return the person of a request; empty if the page has to ask for the name."""
        if not by and self.access.asks_who:
            return ""
        return checked_who(str(by) if by else None)

    def _rows(self, request: Request) -> list[int]:
        return row_numbers(request.query_params.get("rows", ""), len(self.review.state))

    def _row(self, text: str) -> int:
        rows = row_numbers(text, len(self.review.state))
        if len(rows) != 1:
            raise UsageError("row: expected one number")
        return rows[0]

    def _category(self, request: Request) -> int:
        category = number(request.query_params.get("category", ""))
        if category not in self.review.state.categories:
            raise UsageError(f"category {category}: does not exist")
        return category


def _bad_request(_request: Request, error: Exception) -> Response:
    """Return an error that a user can cause as a sentence."""
    return _json({"error": str(error)}, 400)


def _version(run: Run, images: Path | None) -> str:
    """Return a hash that differs between runs, folders of images, and times of writing."""
    text = f"{run.path.resolve()} {images or ''} {table_version(run)}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _binary(content: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(content, media_type="application/octet-stream", headers=headers)


def _json(content: object, status: int = 200) -> Response:
    """Return compact JSON, in ASCII because file names may contain lone surrogates."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")
