"""Growing a category in Chromium: a search by yes and no that always ends."""

import pytest

from chromium import Page

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
