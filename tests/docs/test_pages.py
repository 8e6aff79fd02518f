"""Records of measurements are quoted, and files that pages name exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "shoal"
PAGES = [*ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_every_record_has_a_table_and_is_quoted() -> None:
    records = sorted(ROOT.glob("benchmarks/results/*.md"))
    assert records
    for record in records:
        assert record.name in TEXT
        assert "\n|---" in record.read_text(encoding="utf-8"), record


def test_files_that_pages_name_exist() -> None:
    packages = {path.name for path in PACKAGE.iterdir()}
    names = {
        path.name
        for folder in ("src", "tests", "benchmarks", "examples")
        for path in ROOT.glob(f"{folder}/**/*.py")
    }
    named = re.findall(r"`(?:src/shoal/)?([a-z_/0-9]+\.py)", TEXT)
    assert len(named) > 20
    for name in named:
        if name.partition("/")[0] in packages:
            assert (PACKAGE / name).exists(), name
        elif "/" not in name:
            assert name in names
