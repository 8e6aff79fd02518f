"""Growing a category in Chromium: pages of candidates, and a binary search that always ends."""

from pathlib import Path

import pytest

from chromium import Page
from review_page import answer, ask, pictured, wait_for
from shoal.review.review import Review
from shoal.runs import Run

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


def test_a_page_is_accepted_and_refused_by_keys_and_clicks_and_the_next_one_has_others(
    page: Page, run: Path
) -> None:
    rows = "[...document.querySelectorAll('.grow .thumb')].map((one) => Number(one.dataset.row))"
    here = page.run("shoal.view.id")
    ask(page, "g")
    pictured(page)
    shown = page.run(rows)
    assert len(shown) == 24
    answer(page, "y")
    answer(page, "n")
    page.click(".grow .thumb:nth-child(4) .refuse")
    answer(page, "Y")
    wait_for(page, 2)
    pictured(page)
    assert not {*shown} & {*page.run(rows)}
    answer(page, "N")
    wait_for(page, 3)
    page.key("Escape")
    moved, refused, others = Review(Run(run)).state.actions
    assert (moved.kind, refused.kind, others.kind) == ("assign", "refuse", "refuse")
    assert moved.category == refused.category == here
    assert moved.rows.tolist() == sorted({*shown} - {shown[1], shown[3]})
    assert refused.rows.tolist() == sorted([shown[1], shown[3]])
    assert len(others.rows) == 24


def test_one_stranger_in_first_place_leads_back_to_the_page(page: Page) -> None:
    ask(page, "g")
    answer(page, "b")
    while page.run("document.querySelector('.question').textContent.startsWith('Do all')"):
        answer(page, "n")
    assert page.run("document.querySelectorAll('.grow .accept').length") == 24
