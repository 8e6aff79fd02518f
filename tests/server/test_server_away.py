"""A server that is unreachable for a while, in Chromium: the message about it disappears when it
responds again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chromium import Page
from review_page import wait_for
from served import served

pytestmark = pytest.mark.browser

Opened = Callable[..., AbstractContextManager[Page]]

BANNER = "!document.getElementById('banner').hidden"

# The page receives no changes: its request for them fails, or, once `fails` is off and `waits` is
# on, never returns
LOST = """window.asked = fetch, window.heard = [], window.fails = true,
window.fetch = (of, how) => {
  if (!String(of).startsWith('/api/changes')) return asked(of, how);
  heard.push(String(of));
  if (fails) return Promise.reject(new TypeError('cut'));
  return window.waits
    ? new Promise((_, no) => how.signal.addEventListener('abort', () => no(how.signal.reason)))
    : asked(of, how);
}, true"""


def lose(page: Page) -> None:
    page.run(LOST)
    page.key("f")  # after an action, the page requests changes again
    wait_for(page, 1)
    page.wait(BANNER)


def test_without_any_action_the_server_is_asked_to_answer_at_once(
    opened: Opened, run: Path
) -> None:
    with served(run) as server, opened(server) as page:
        lose(page)
        page.run("window.heard = [], window.fails = false, true")
        page.wait(f"!({BANNER})")
        assert "now=1" in page.run("heard[0]")
        page.wait("heard.length > 1")
        assert "now=1" not in page.run("heard[1]")
