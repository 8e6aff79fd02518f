"""Growing a category in Chromium: a search by yes and no that always ends."""

import pytest

from chromium import Page
from review_page import answer, ask, go_to, pictured, text

pytestmark = pytest.mark.browser

SEARCH = """import("/static/bisection.js").then(({ answered, begun, isOver, nextOf }) => {
  const wrong = [];
  for (const n of [1, 2, 5, 11, 12, 13, 24, 25, 37, 100, 300]) {
    for (let belonging = 0; belonging <= n; belonging++) {
      let search = begun(n), questions = 0;
      for (; !isOver(search) && questions <= 2 * Math.log2(n) + 2; questions++) {
        search = answered(search, nextOf(search) <= belonging);
      }
      if (!isOver(search) || search.low !== belonging) wrong.push([n, belonging, search]);
    }
  }
  return wrong;
})"""


def test_every_sequence_of_answers_ends_at_the_number_that_belongs(same_page: Page) -> None:
    assert same_page.run(SEARCH) == []


def test_no_counts_where_the_last_candidate_is_among_those_asked_about(same_page: Page) -> None:
    go_to(same_page, "one")
    ask(same_page, "g")
    pictured(same_page)
    n = int(text(same_page, "#candidates").split(" of ")[1].split()[0])
    while f" to {n} of " not in text(same_page, "#candidates"):
        answer(same_page, "y")
    pictured(same_page)
    low = int(text(same_page, "#candidates").split("; ")[1].split()[0])
    for high in (n, low + -(-(n - low) // 2)):  # each no leaves the lower half
        assert f" to {high} of " in text(same_page, "#candidates")
        answer(same_page, "n")
    same_page.key("Escape")
    same_page.wait("!document.getElementById('dialog').open")
