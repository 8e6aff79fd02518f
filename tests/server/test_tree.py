"""The tree of categories in Chromium: keys fold, name, merge and show a branch."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from chromium import Page
from digit_runs import write_synthetic
from review_page import ask, rows, seen, state, text, wait_for
from served import Served, served
from shoal.report.rendering import category_tree
from shoal.review.reviewed_run import ReviewedRun
from small_runs import write_small

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opened = Callable[..., AbstractContextManager[Page]]

SELECTED = "document.querySelector('[aria-selected=true]')"
NAMES = "[...document.querySelectorAll('.tree bdi')].map((name) => name.textContent).sort()"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four known categories, and four novel ones far from them."""
    ids = np.repeat(np.arange(8), 3)
    names = tuple(f"{'class' if n < 4 else 'novel'}-{n}" for n in range(8))
    small = write_small(tmp_path / "run", ids=tuple(ids.tolist()), names=names)
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(8, 8)) + np.repeat(np.eye(2, 8), 4, axis=0) * 9
    x = centers[ids] + rng.normal(size=(len(ids), 8), scale=0.1)
    small.write_array("embeddings", x.astype(np.float32))
    return small.path


def show_tree(page: Page) -> None:
    page.click('[data-view="tree"]')
    page.wait("document.querySelector('.tree [role=treeitem]')")
    page.wait(f"document.activeElement === {SELECTED}")
    page.settle()


def select_novel(page: Page) -> None:
    """Go to the branch with the novel categories, one of the two below the root."""
    page.key("Home")
    while "class" in text(page, "#facts"):
        page.key("ArrowDown")
    seen(page)


def test_a_branch_is_named_merged_and_shown_by_keys(opened: Opened, server: Served) -> None:
    with opened(server) as page:
        show_tree(page)
        assert len(page.run(NAMES)) == 8
        select_novel(page)
        page.key("ArrowLeft")
        assert page.run(f"{SELECTED}.ariaExpanded") == "false"
        assert not [name for name in page.run(NAMES) if name.startswith("novel")]
        page.key("ArrowRight")
        ask(page, "r")
        page.type("wader")
        page.key("Enter")
        wait_for(page, 1)
        waders = [f"wader {n}" for n in range(1, 5)]
        page.wait(f"{NAMES}.filter((name) => name.startsWith('wader')).length === 4")
        assert page.run(NAMES)[4:] == waders
        page.key("Enter")
        page.wait("shoal.view.kind === 'branch'")
        assert sorted(rows(page)) == list(range(12, 24))
        page.run("history.back(), true")
        page.wait("shoal.view.kind === 'tree' && document.querySelector('.tree [role=treeitem]')")
        page.wait("document.querySelector('#facts').textContent.includes('wader')")
        page.run(f"{SELECTED}.focus(), true")
        ask(page, "j")
        assert "12 images will be one category." in text(page, "#dialog .muted:not(.side-of *)")
        page.key("Enter")
        wait_for(page, 2)
        page.wait(f"{NAMES}.length === 5")
        page.key("u")
        wait_for(page, 3)
        page.wait(f"{NAMES}.length === 8")
        page.key("u")
        wait_for(page, 4)
        page.wait(f"!{NAMES}.some((name) => name.startsWith('wader'))")
        assert page.complaints() == []


def test_the_cut_is_moved_up_to_a_branch_and_below_a_category(
    opened: Opened, server: Served, run: Path
) -> None:
    """Known categories, which are as close to each other as the novel ones, stay apart."""
    with opened(server) as page:
        show_tree(page)
        page.key("Home")  # the root
        ask(page, "k")
        assert "8 categories become 5." in text(page, "#dialog")
        page.key("Enter")
        wait_for(page, 1)
        page.wait(f"{NAMES}.length === 5")
        while page.run(f"{SELECTED}.hasAttribute('aria-expanded')") or "novel" not in text(
            page, "[aria-selected=true]"
        ):
            page.key("ArrowDown")
        seen(page)
        ask(page, "s")
        page.wait("!document.querySelector('#dialog [type=submit]').disabled")
        page.key("Enter")
        wait_for(page, 2)
        page.wait(f"{NAMES}.length === 6")
        sizes = sorted(len(state(run).state.members(c)) for c in state(run).state.categories)
        assert sizes == [3, 3, 3, 3, 3, 9]
        page.key("u")
        wait_for(page, 3)
        page.key("u")
        wait_for(page, 4)
        page.wait(f"{NAMES}.length === 8")
        assert page.complaints() == []


@pytest.mark.parametrize("width", [420, 1280])
def test_a_thousand_categories(opened: Opened, tmp_path: Path, width: int) -> None:
    """With a thousand categories, nothing is wider than the page and all branches can be opened."""
    run = write_synthetic(tmp_path / "large", 3000, n_categories=1000, n_dimensions=16)
    with served(run.path) as server, opened(server, width=width) as page:
        if width < 760:
            page.click("#menu")
            page.wait("document.getElementById('side').getBoundingClientRect().left === 0")
        show_tree(page)
        assert page.run("document.querySelectorAll('.tree [role=treeitem]').length") < 200
        for _ in range(5):
            page.key("+")
        n_nodes = 2 * len(category_tree(ReviewedRun(run.path)).names) - 1
        page.wait(f"document.querySelectorAll('.tree [role=treeitem]').length === {n_nodes}", 60)
        page.key("ArrowDown")
        wide = "[...document.querySelectorAll('.tree [role=treeitem]')].slice(0, 40).filter((e) => "
        wide += "e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"
        assert page.run(wide) == []
        assert page.complaints() == []
