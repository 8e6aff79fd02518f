"""The page as `shoal review` opens it in Chromium: by a file that leads there."""

from pathlib import Path

import pytest

from chromium import Browser
from served import served
from shoal.cli.browser import leading_to

pytestmark = pytest.mark.browser


def test_the_file_leads_to_the_page_which_keeps_its_cookie_and_no_token(browser: Browser, run: Path) -> None:
    with served(run) as server, leading_to(server.url) as file, browser.open(file) as page:
        page.wait("location.protocol === 'http:' && document.body?.dataset.ready")
        assert page.run("location.origin + location.pathname + location.search") == f"http://127.0.0.1:{server.port}/"
        assert page.run("document.referrer") == ""
        assert page.run("fetch('/api/run').then((answer) => answer.status)") == 200
