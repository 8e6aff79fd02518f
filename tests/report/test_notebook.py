from pathlib import Path

import html5lib
import pytest
from sklearn.datasets import load_digits

from digit_runs import picture
from shoal.report.rendering import run_html
from shoal.runs import Run
from small_runs import write_small


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four categories of three images each, one of them with a name that must be escaped."""
    made = write_small(tmp_path / "run", names=("gull", "<b>heron & co", "novel-001", "novel-002"))
    made.write_thumbnails(picture(image) for image in load_digits().images[:12])
    return Run(made.path)


def test_it_shows_the_answer_and_a_strip_of_pictures_per_category(run: Run) -> None:
    text = run_html(run, "Found 4 categories: 2 known, 2 novel.")
    html5lib.HTMLParser(strict=True).parseFragment(text)
    assert "Found 4 categories: 2 known, 2 novel." in text
    assert text.count("<tr>") == 1 + 4
    n_exemplars = sum(len(category.exemplars) for category in run.categories)
    assert text.count('<img src="data:image/') == n_exemplars > 0
    assert "&lt;b&gt;heron &amp; co" in text
    assert text.count("(novel)") == 2
