"""All outputs report the same number of categories."""

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shoal
from conftest import write_table
from shoal.cli.main import app

pytestmark = pytest.mark.usefixtures("one_thread")


def test_console_python_csv_report_and_json_agree_on_the_number_of_categories(
    photos, tmp_path: Path
) -> None:
    """Half of the red images are labeled crimson, so one of the two categories has no image: it is
    named but not counted."""
    lines = photos.labels.read_text().splitlines()
    reds = [line for line in lines if line.endswith(",red")]
    photos.labels.write_text(
        "\n".join(f"{line[:-3]}crimson" if line in reds[::2] else line for line in lines)
    )
    given = [
        photos.folder,
        "--labels",
        photos.labels,
        "--config",
        photos.config,
        "--no-train",
        "--n-clusters",
        5,
    ]
    given += ["--set", "must_link=false"]  # must-links would fill both categories
    words = ["discover", *given, "--out", tmp_path / "run", "--device", "cpu"]
    console = CliRunner().invoke(app, [str(word) for word in words])
    assert console.exit_code == 0, console.stderr
    assert console.stdout.startswith("Found 5 categories: 3 of 4 known, 2 novel. ")
    run = shoal.load(tmp_path / "run")
    assert (run.n_clusters, run.n_known, run.n_novel) == (5, 3, 2)
    rows = list(csv.DictReader((run.path / "categories.csv").read_text().splitlines()))
    (empty,) = (row["category"] for row in rows if row["size"] == "0")
    assert (len(rows), sum(int(row["size"]) > 0 for row in rows)) == (6, 5)
    assert len({row.category for row in run.assignments}) == 5
    page = (run.path / "report.html").read_text("utf-8")
    assert re.search(r"<h1[^>]*>(.*?)</h1>", page)[1] == "5 categories in 60 images"
    assert re.search(r"<title>(.*?) ·", page)[1] == "5 categories in 60 images"
    assert re.findall(r"(known|novel)</dt><dd>(\d+)</dd>", page) == [("known", "3"), ("novel", "2")]
    facts = json.loads(
        CliRunner().invoke(app, [str(word) for word in [*words, "--resume", "--json"]]).stdout
    )
    assert (facts["n_clusters"], facts["n_known"], facts["n_novel"]) == (5, 3, 2)
    assert facts["known_without_images"] == [empty]
    truth = write_table(tmp_path / "truth.csv", photos.truth)
    scored = CliRunner().invoke(app, ["evaluate", str(run.path), "--truth", str(truth), "--json"])
    assert json.loads(scored.stdout)["n_clusters"] == 5
