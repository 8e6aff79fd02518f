"""The page of a comparison: complete, escaped, without a script, and readable in a browser at
any width.
"""

import csv
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import html5lib
import numpy as np
import pytest

from chromium import Browser
from digit_runs import HOSTILE, write_digits, write_hostile
from shoal.report.comparison import Side, render_comparison, side_by_side
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run
from shoal.text import shown
from small_runs import write_small


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


def write_comparison(path: Path, runs: list[Run], label: str, rows: list[dict[str, Any]]) -> Run:
    """Write a comparison of existing runs; the label of the first image is held out, and only the
    first method is correct on it.
    """
    run = Run(path)
    names = [run.path.name for run in runs]
    tie = {"methods": names[:2], "difference": 0.05, "interval": [-0.05, 0.15], "is_tie": True}
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
    with (path / "held_out.csv").open("w", encoding="utf-8", newline="") as out:
        write = csv.writer(out).writerow
        write(["repeat", "path", "label", "is_novel", *(f"{name}_correct" for name in names)])
        for image in runs[0].assignments:
            if image.is_novel:
                write(
                    [
                        "1",
                        image.path,
                        label,
                        "true",
                        *("true" if at == 0 else "false" for at in range(len(names))),
                    ]
                )
                break
        write(["2", runs[0].assignments[1].path, label, "false", *("true" for _ in names)])
    return run


def parsed(page: str) -> ElementTree.Element:
    found: ElementTree.Element = html5lib.HTMLParser(
        strict=True, namespaceHTMLElements=False
    ).parse(page)
    return found


@pytest.fixture(scope="module")
def digits_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("comparison") / "run"
    runs = [
        write_digits(path / "methods" / name, n)
        for name, n in (("cms", 200), ("gcd", 200), ("frozen", 200))
    ]
    rows = [
        row("cms", "CMS", "1–2", 0.8),
        row("gcd", "GCD", "1–2", 0.75),
        row("frozen", "frozen encoder", "3", 0.3),
    ]
    page = path / "compare.html"
    page.write_text(render_comparison(write_comparison(path, runs, "nine", rows)), encoding="utf-8")
    return page


def test_it_holds_the_table_ties_the_command_and_every_methods_categories(
    digits_page: Path,
) -> None:
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
    assert links.count("methods/cms/report.html") == 2
    run = Run(digits_page.parent / "methods" / "cms")
    assert all(category.category in text for category in run.categories)
    assert "matched with held-out nine" in text
    marks = [
        "".join(mark.itertext())
        for mark in tree.iter("span")
        if "mark-right" in mark.get("class", "")
    ]
    assert set(marks) <= {"✓"}


def test_it_holds_no_script_and_asks_for_nothing(digits_page: Path) -> None:
    page = digits_page.read_text(encoding="utf-8")
    assert not list(parsed(page).iter("script"))
    assert "default-src 'none'" in page
    assert not re.search(r"https?://", page)
    for image in parsed(page).iter("img"):
        assert image.get("src", "").startswith("data:image/")
        assert image.get("alt")


def test_names_of_any_kind_are_text(tmp_path: Path) -> None:
    runs = [write_hostile(tmp_path / "run" / "methods" / name) for name in ("cms", "gcd")]
    rows = [row("cms", "CMS", "1", 0.8), row("gcd", "GCD", "2", 0.7)]
    for name in HOSTILE:
        page = render_comparison(write_comparison(tmp_path / "run", runs, name, rows))
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


def sides(tmp_path: Path, *ids: tuple[int, ...]) -> list[Side]:
    runs = [write_small(tmp_path / f"{at}", ids=own) for at, own in enumerate(ids)]
    return [Side(ReviewedRun.of(run), {}) for run in runs]


def test_known_categories_stand_beside_each_other_by_name_and_novel_ones_by_their_images(
    tmp_path: Path,
) -> None:
    """Ids 0 and 1 are known. Category 3 of the second method has the images of category 2 of the
    first, and the second has no other novel category.
    """
    found = sides(
        tmp_path, (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3), (0, 0, 0, 1, 1, 1, 3, 3, 3, 0, 0, 0)
    )
    assert side_by_side(found) == [[0, 0], [1, 1], [2, 3], [3, None]]


def test_what_the_first_method_does_not_have_gets_a_line_of_its_own(tmp_path: Path) -> None:
    found = sides(
        tmp_path, (0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1), (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)
    )
    assert side_by_side(found) == [[0, 0], [1, 1], [None, 2], [None, 3]]


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
        assert page.run("[...document.images].every((image) => image.alt)")
        assert page.complaints() == []
