"""Several tabs of one browser, in Chromium: opened by a link on another site, in the background, or
by going back.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chromium import Browser, Page
from review_page import ask, rows, seen, wait_for
from served import served
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opened = Callable[..., AbstractContextManager[Page]]


@contextmanager
def other_site(html: str) -> Iterator[str]:
    """Serve a page at `localhost`, which is another site than 127.0.0.1; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


def test_the_printed_address_is_opened_by_a_link_on_another_site(
    browser: Browser, run: Path
) -> None:
    with (
        served(run) as server,
        other_site(f'<title>a</title><a href="{server.url}">the review</a>') as address,
        browser.open(address) as page,
    ):
        page.click("a")
        page.wait("location.hostname === '127.0.0.1' && document.readyState === 'complete'")
        page.wait("document.body.dataset.ready")
        assert "token" not in page.run("location.href")


def test_a_tab_behind_another_asks_for_nothing_until_it_is_shown_again(
    opened: Opened, run: Path
) -> None:
    with served(run) as server, opened(server) as behind, opened(server) as front:
        front.call("Page.bringToFront")
        behind.wait("document.visibilityState === 'hidden'")
        review = Review(Run(run))
        review.act(verbs.decide, "reject", None, [review.state.paths[rows(front)[0]]], by="ben")
        wait_for(front, 1)
        assert behind.run("document.body.dataset.seq") == "0"
        behind.call("Page.bringToFront")
        wait_for(behind, 1)
        assert behind.complaints() == []


def test_one_step_back_closes_the_enlarged_image_and_shows_what_was_there_before(
    page: Page,
) -> None:
    first = page.run("shoal.view.id")
    page.key("]")
    page.wait(f"shoal.view.id !== {first}")
    seen(page)
    ask(page, "Enter")
    page.run("history.back()")
    page.wait(f"!document.getElementById('dialog').open && shoal.view.id === {first}")
    assert page.run("location.hash").endswith(f"id={first}")
