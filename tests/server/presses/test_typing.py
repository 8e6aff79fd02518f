"""Typing while the server is slow, in Chromium: keys typed into a field are not commands."""

import pytest

from chromium import Page
from review_page import go_to, hold_back, let_through, seen

SEQ = "document.body.dataset.seq"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("width", [1280, 400])
def test_what_is_typed_while_another_category_is_awaited_goes_into_the_field(
    page: Page, width: int
) -> None:
    go_to(page, "zero")
    before = int(page.run(SEQ))
    page.resize(width, 900)
    seen(page)
    hold_back(page, "/api/act")
    page.key("x")
    page.run("document.querySelector('.category:not([aria-current])').click(), true")
    page.key("/")
    page.wait("document.activeElement.id === 'find'")
    page.key("c")
    let_through(page)
    page.wait(f"{SEQ} === '{before + 1}'")
    page.wait(
        "shoal.view.kind === 'category' && document.getElementById('name').textContent !== 'zero'"
    )
    page.settle()
    page.key("c")
    page.settle()
    assert page.run("[document.activeElement.id, document.getElementById('find').value]") == [
        "find",
        "cc",
    ]
    assert int(page.run(SEQ)) == before + 1, "nothing was confirmed"
    page.run(
        "(({ find }) => { find.value = ''; find.oninput(); return true })({ find: "
        "document.getElementById('find') })"
    )
    page.key("Escape")
    page.resize(1280, 900)
    page.settle()
