"""`shoal review`: the page on which a person finishes what a run began."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import Json, open_in_browser, result, say
from shoal.cli.options import FinishedRun, MovedImages
from shoal.errors import UsageError
from shoal.words import count, plural

if TYPE_CHECKING:
    from shoal.review.review import Review
    from shoal.runs import Run

MAX_LISTED = 20
"""How much of what no longer fits is said; --json has it all."""


def review(
    run: FinishedRun,
    port: Annotated[
        int | None,
        typer.Option(help="Port to serve on.", show_default="8765, or another one that is free"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve on; others can reach any but the default.")
    ] = "127.0.0.1",
    open_: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show everything, change nothing.")
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Another run of the same images, whose review is done again on this one first."
        ),
    ] = None,
    images: MovedImages = None,
    json: Json = False,
) -> None:
    """Confirm, correct, name, merge and split what a run found, in a browser, e.g. `shoal review
    runs/birds`.

    Everything done there is added to review.jsonl in the run folder at once; Ctrl-C ends the
    server. `shoal export`, `report`, `assign` and `evaluate` then use what was decided.
    """
    from shoal.runs import Run, check_not_held
    from shoal.server.guard import Access
    from shoal.server.pictures import Originals
    from shoal.server.serving import bind, serve

    check_not_held(run)
    if images is not None and not images.is_dir():
        raise UsageError(f"{images}: there is no such folder; give the one that --images shall be")
    opened = Run.open(run, checks_tables=False)  # the review reads them all, and checks them then
    opened_review, misfits = _open(opened, replay, read_only=read_only)
    originals = Originals(opened, opened_review.state.paths, images)
    listening = bind(host, port)
    access = Access(host=host, port=listening.getsockname()[1], is_read_only=read_only)

    def started() -> None:
        facts = {
            "url": access.url,
            "run": str(run),
            "read_only": read_only,
            "does_not_fit": misfits,
        }
        result(access.url, facts, as_json=json)
        if by_address := access.url_by_address:
            say(f"where that name is not known: {by_address}")
        if not access.is_loopback:
            may = "see everything" if read_only else "change the review"
            say(f"note: whoever has this address can {may}; over ssh, `ssh -L` needs no --host")
        if originals.missing:
            say(f"note: no original can be shown enlarged: {originals.missing}")
        if open_ and open_in_browser(access.url_once):
            say("it opens in a browser; if that cannot show it, open the address")
        elif open_:
            say("note: no browser was found here; open the address in one")
        kept = "" if read_only else "; everything done is kept as it is done"
        say(f"Ctrl-C ends it{kept}")

    serve(opened_review, access, listening, started, originals, misfits)
    _tell(opened_review, run)


def _open(run: "Run", replay: Path | None, *, read_only: bool) -> tuple["Review", list[str]]:
    """The review of a run.

    One of another answer, of this folder or another, is done again on it first.
    """
    from shoal.review.replay import replay_review
    from shoal.review.review import OtherAnswer, Review, checked_who

    if replay is not None and read_only:
        raise UsageError("--replay writes a review, --read-only does not; leave out one of them")
    if replay is None:
        try:
            review = Review(run)
        except OtherAnswer:
            if read_only:
                raise
        else:
            if review.log.note:
                say(review.log.note)
            return review, []
    entries, lost = replay_review(replay or run.path, run, by=checked_who(None))
    misfits = [misfit.in_words() for misfit in lost]
    fits = "everything fits"
    if misfits:
        fits = f"{count(len(misfits), 'action')} no longer {plural(len(misfits), 'fits')}"
    done = count(len(entries), "action")
    say(f"the review of another answer was done again on this one: {done}; {fits}")
    for words in misfits[:MAX_LISTED]:
        say(f"  {words}")
    if len(misfits) > MAX_LISTED:
        say(f"  … and {len(misfits) - MAX_LISTED:,} more")
    return Review(run), misfits


def _tell(review: "Review", run: Path) -> None:
    """What there is now, and what to do with it."""
    from collections import Counter

    from shoal.review.actions import STATUSES

    review.refresh()
    n_by_status = Counter(STATUSES[status] for status in review.state.images.status.tolist())
    said = [f"{n_by_status[one]:,} {one}" for one in STATUSES[1:] if n_by_status[one]]
    images = count(len(review.state), "image")
    say(f"of {images} {', '.join(said) or 'none was decided on'}")
    say(f"next: shoal export {shlex.quote(str(run))} --to imagefolder --out sorted/")
