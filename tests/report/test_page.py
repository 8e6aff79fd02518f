"""The HTML of the page: valid, complete, escaped, small enough, and also written if parts of a run
are missing.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import html5lib
import numpy as np
import pytest

from shoal.report.page import render_report
from shoal.runs import PARTS, Assignment, Category, Run


def parsed(page: str) -> ElementTree.Element:
    """Parse like a browser, but refuse errors that a browser would tolerate."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    found: ElementTree.Element = parser.parse(page)
    return found


def check(page: str) -> ElementTree.Element:
    """Check what a validator checks and the parser does not: ids, references, and names of
    controls.
    """
    tree = parsed(page)
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids)), sorted({i for i in ids if ids.count(i) > 1})
    for element in tree.iter():
        for attribute in ("for", "aria-labelledby", "aria-describedby"):
            assert set(element.get(attribute, "").split()) <= set(ids), element.attrib
        if element.get("href", "").startswith("#"):
            assert element.get("href", "")[1:] in ids, element.get("href")
        if element.tag == "img":
            assert element.get("alt") is not None
            assert element.get("src", "").startswith("data:image/")
        if element.tag in ("button", "a"):
            words = "".join(element.itertext()) + "".join(
                i.get("alt", "") for i in element.iter("img")
            )
            assert words.strip() or element.get("aria-label"), ElementTree.tostring(element)
    levels = [
        int(element.tag[1]) for element in tree.iter() if re.fullmatch(r"h[1-6]", str(element.tag))
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    return tree


def data(page: str, name: str) -> Any:
    return json.loads(re.search(rf'id="data-{name}">(.*?)</script>', page, re.DOTALL)[1])


def section_ids(tree: ElementTree.Element) -> list[str]:
    return [section.get("id", "") for section in tree.iter("section")]


@pytest.fixture(scope="module")
def page(digits: Run) -> str:
    return render_report(digits)


def test_a_whole_run_has_every_section_and_is_valid(page: str) -> None:
    tree = check(page)
    sections = [
        "",
        "gallery",
        "map",
        "n-clusters",
        "confidence",
        "tree",
        "labels",
        "training",
        "about",
    ]
    assert section_ids(tree) == sections
    assert "Not in this report" not in page


def test_nothing_in_the_page_points_elsewhere(page: str) -> None:
    tree = check(page)
    for element in tree.iter():
        for attribute in ("src", "href", "srcset", "action", "data"):
            target = element.get(attribute, "")
            assert target == "" or target.startswith(("data:", "#")), (element.tag, target[:80])
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'; img-src data:;" in page


def test_every_image_of_the_map_is_known_to_the_page_and_has_a_thumbnail(
    digits: Run, page: str
) -> None:
    images = data(page, "images")
    maps = data(page, "maps")
    thumbnails = data(page, "thumbnails")
    assert images["row"] == list(range(600))
    assert images["path"] == [row.path for row in digits.assignments]
    assert [category["name"] for category in images["categories"]] == [
        c.category for c in digits.categories
    ]
    assert [layout["title"] for layout in maps] == ["Before training", "After training"]
    assert all(len(layout["x"]) == 600 and min(layout["x"] + layout["y"]) == 0 for layout in maps)
    on_page = {int(row) for row in re.findall(r'data-row="(\d+)" title="[^"]*"><img', page)}
    assert on_page | {int(row) for row in thumbnails} == set(range(600))
    assert not on_page & {int(row) for row in thumbnails}  # each image is embedded once


def test_the_same_run_gives_the_same_page(digits: Run, page: str) -> None:
    assert render_report(digits) == page


def test_hostile_names_are_shown_and_never_become_markup(hostile: Run) -> None:
    page = render_report(hostile)
    tree = check(page)
    assert [element.get("type") for element in tree.iter("script")] == ["application/json"] * 3 + [
        None
    ]
    assert not [
        element for element in tree.iter() if any(name.startswith("on") for name in element.attrib)
    ]
    names = {"".join(heading.itertext()) for heading in tree.iter("h3")}
    assert "<script>alert(1)</script>.png" in names
    assert "line␊break␉and tab.png" in names
    assert "${alert(4)} {{ 7*7 }} $\\frac{1}{2}$ & &amp;.png" in names
    assert "</script><script>alert(3)</script>.png" in data(page, "images")["names"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing",
    [
        *(
            "metrics.jsonl",
            "shifts.json",
            "accuracy.json",
        ),
        *("shifted.npy", "frozen.npy", "tree.npy", "thumbnails.bin"),
    ],
)
def test_no_missing_piece_is_an_error(small: Run, tmp_path: Path, missing: str) -> None:
    (tmp_path / "run").mkdir()
    for part in PARTS:
        if part != missing and small.has(part):
            (tmp_path / "run" / part).symlink_to(small.path / part)
    check(render_report(Run.open(tmp_path / "run")))


IMAGE = Assignment(
    path="a.png", category_id=0, category="a", is_novel=False, confidence=1, outlier_score=0
)


def test_a_single_category_and_a_single_image(plain_run: Callable[..., Run]) -> None:
    run = plain_run([IMAGE])
    run.write_array("shifted", np.ones((1, 2)))
    run.write_array("tree", np.zeros((0, 4)))
    page = render_report(run)
    check(page)
    assert "1 category in 1 image" in page


def test_a_category_that_lost_its_images(plain_run: Callable[..., Run]) -> None:
    own = Category(category_id=0, category="a", is_novel=False, size=1, n_labeled=0, confidence=1.0)
    lost = replace(own, category_id=1, category="b", size=0, confidence=float("nan"))
    check(render_report(plain_run([IMAGE], [own, lost])))
