"""`shoal review`: the page on which people review the result of a run."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import FinishedRun, Json, MovedImages, log, open_in_browser, result
from shoal.errors import UsageError, count

if TYPE_CHECKING:
    from shoal.review.review import Review
    from shoal.runs import Run


def review(
    run: FinishedRun,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port to serve on.", show_default="8765, or another free one", min=0, max=65535
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve on; the default is for this machine only.")
    ] = "127.0.0.1",
    open_: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show the run without allowing changes.")
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Another run of the same images, whose review is replayed on this one first."
        ),
    ] = None,
    salvage: Annotated[
        bool,
        typer.Option(
            "--salvage",
            help="Drop the damaged lines of review.jsonl, list them, and end; a copy is kept.",
        ),
    ] = False,
    images: MovedImages = None,
    json: Json = False,
) -> None:
    """Confirm, correct, name, merge and split what a run found, in a browser, e.g. `shoal review
    runs/birds`.

    Every action is saved immediately in review.jsonl in the run folder; Ctrl-C ends the server.
    `shoal export`, `report`, `assign` and `evaluate` then use the reviewed categories.
    """
    from shoal.runs import Run, check_not_locked
    from shoal.server.app import bind, redirect_page, serve
    from shoal.server.guard import Access
    from shoal.server.page_data import Originals

    check_not_locked(run)
    if salvage:
        _salvage(Run.open(run), as_json=json)
        return
    if images is not None and not images.is_dir():
        raise UsageError(f"{images}: there is no such folder; give the folder of the images")
    opened = Run.open(run, checks_tables=False)  # the review reads them all, and checks them then
    opened_review, not_applied = _open(opened, replay, read_only=read_only)
    originals = Originals(opened, opened_review.state.paths, images)
    listening = bind(host, port)
    access = Access(host=host, port=listening.getsockname()[1], is_read_only=read_only)

    facts = {
        "url": access.url,
        "run": str(run),
        "read_only": read_only,
        "not_applied": not_applied,
    }
    # Requests wait in the socket until the server runs.
    with contextlib.suppress(KeyboardInterrupt), redirect_page(access.local_url) as page:
        result(access.url, facts, as_json=json)
        if not access.is_loopback:
            may = "see everything" if read_only else "change the review"
            log(f"note: anybody with this address can {may}; `ssh -L` needs no --host")
        if originals.missing:
            log(f"note: enlarged images are not available: {originals.missing}")
        if open_ and open_in_browser(page.as_uri()):
            log("opening it in a browser; if that fails, open the address")
        elif open_:
            log("note: no browser found; open the address in one")
        saved = "" if read_only else "; every action is saved immediately"
        log(f"Ctrl-C ends the server{saved}")
        serve(opened_review, access, listening, originals)


def _salvage(run: "Run", *, as_json: bool) -> None:
    from shoal.review.review import FILE, salvage

    dropped, copy = salvage(run)
    facts = {"dropped": dropped, "copy": None if copy is None else str(copy)}
    result("\n".join(dropped) or f"{run.path / FILE} is not damaged", facts, as_json=as_json)
    if copy is not None:
        log(f"dropped {count(len(dropped), 'line')}; the log as it was is {copy}")


def _open(run: "Run", replay: Path | None, *, read_only: bool) -> tuple["Review", list[str]]:
    """Return the review of a run, and the actions that could not be applied.

    A review of another result, from this folder or another, is replayed on this one first.
    """
    from shoal.review.replay import replay_review
    from shoal.review.review import OtherResult, Review, checked_who

    if replay is not None and read_only:
        raise UsageError("--replay and --read-only: found both, expected one of them")
    if replay is None:
        try:
            review = Review(run)
        except OtherResult:
            if read_only:
                raise
        else:
            if review.log.note:
                log(review.log.note)
            return review, []
    entries, not_applied = replay_review(replay or run.path, run, by=checked_who(None))
    log(
        f"replayed {count(len(entries), 'action')} of a review of another result; "
        f"{len(not_applied):,} could not be applied completely"
    )
    for text in not_applied:
        log(f"  {text}")
    return Review(run), not_applied
