"""The page of a comparison: complete, escaped, without a script, and readable in a browser at
any width.
"""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import html5lib
import numpy as np
import pytest

from chromium import Browser
from digit_runs import HOSTILE
from shoal.errors import shown
from shoal.report.rendering import render_comparison
from shoal.runs import Run


def row(method: str, title: str, rank: str, share: float) -> dict[str, Any]:
    shares = {
        "accuracy": {"all": share, "known": share, "novel": None},
        "interval": [share - 0.1, share + 0.1],
    }
    return {
        "method": method,
        "title": title,
        "rank": rank,
        "seconds": 75.0,
        **shares,
    }


def write_comparison(path: Path, label: str, rows: list[dict[str, Any]]) -> Run:
    """Write the table of a comparison."""
    run = Run(path)
    path.mkdir(parents=True, exist_ok=True)
    tie = {"methods": ["cms", "gcd"], "difference": 0.05, "interval": [-0.05, 0.15], "is_tie": True}
    found = {
        "headline": "A tie for first: CMS and GCD",
        "sentences": ["CMS: 80.0 % of 10 held-out images correct.", f"About {label}."],
        "rows": rows,
        "pairs": [tie, tie | {"is_tie": False}],
        "held_out": {"n_images": 10, "n_novel": 4, "categories": [[label]], "n_repeats": 1},
        "n_clusters": {"is_given": False, "values": [8]},
        "epochs": {"cms": 2},
        "command": f"shoal discover {label} --method cms",
    }
    run.write_json("comparison", found)
    return run


def parsed(page: str) -> ElementTree.Element:
    found: ElementTree.Element = html5lib.HTMLParser(
        strict=True, namespaceHTMLElements=False
    ).parse(page)
    return found


@pytest.fixture(scope="module")
def digits_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("comparison") / "run"
    rows = [
        row("cms", "CMS", "1–2", 0.8),
        row("gcd", "GCD", "1–2", 0.75),
        row("frozen", "frozen encoder", "3", 0.3),
    ]
    page = path / "compare.html"
    page.write_text(render_comparison(write_comparison(path, "nine", rows)), encoding="utf-8")
    return page


def test_it_holds_the_table_ties_and_the_command(digits_page: Path) -> None:
    page = digits_page.read_text(encoding="utf-8")
    tree = parsed(page)
    text = " ".join("".join(tree.itertext()).split())
    for words in (
        "1–2",
        "80.0 %",
        "70.0 % to 90.0 %",
        "1 min 15 s",
        "no (tie)",
    ):
        assert words in text
    assert "shoal discover nine --method cms" in text
    links = [link.get("href") for link in tree.iter("a")]
    assert links.count("methods/cms/report.html") == 1


def test_it_holds_no_script_and_asks_for_nothing(digits_page: Path) -> None:
    page = digits_page.read_text(encoding="utf-8")
    assert not list(parsed(page).iter("script"))
    assert "default-src 'none'" in page
    assert not re.search(r"https?://", page)


def test_names_of_any_kind_are_text(tmp_path: Path) -> None:
    rows = [row("cms", "CMS", "1", 0.8), row("gcd", "GCD", "2", 0.7)]
    for name in HOSTILE:
        page = render_comparison(write_comparison(tmp_path / "run", name, rows))
        tree = parsed(page)
        text = "".join(tree.itertext())
        assert shown(name) in text
        assert {element.tag for element in tree.iter()}.isdisjoint({"script", "iframe", "object"})
        assert not [
            key
            for element in tree.iter()
            for key in element.keys()  # noqa: SIM118
            if key.startswith("on")
        ]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (390, False), (1280, True)])
def test_in_a_browser_it_fits_and_nothing_goes_wrong(
    browser: Browser, digits_page: Path, width, is_dark
) -> None:
    with browser.open(digits_page, width=width, dark=is_dark) as page:
        assert page.run("document.documentElement.scrollWidth") <= width
        shades = page.run(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
        assert (np.mean(shades) < 100) == is_dark
        assert page.complaints() == []
