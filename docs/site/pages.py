"""Add README, CONTRIBUTING, CHANGELOG and the records of measurements to the site.

These files are outside of docs/, so links between them and the pages of docs/ are rewritten.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "benchmarks" / "results"

# Files of the repository -> pages of the site
OUTSIDE_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/, and an index of the records."""
    records = sorted(RECORDS.glob("*.md"))
    added = {
        page: (ROOT / file).read_text(encoding="utf-8") for file, page in OUTSIDE_PAGES.items()
    }
    added |= {f"records/{record.name}": record.read_text(encoding="utf-8") for record in records}
    added["records/index.md"] = index_of(records)
    linked = [ROOT / "CITATION.cff", *sorted((ROOT / "examples").glob("*.py"))]
    added |= {
        file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in linked
    }
    for uri, content in added.items():
        files.append(File.generated(config, uri, content=content))
    return files


def index_of(records: list[Path]) -> str:
    """Return a page that lists the titles of the records, newest first."""
    lines = [
        "# Records",
        "",
        "Measurements, each with command, commit, hardware and seeds. Check out the commit to run",
        "the command: some scripts have been deleted since.",
        "",
    ]
    for record in reversed(records):
        title = record.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- {record.name[:10]}: [{title}]({record.name})")
    return "\n".join([*lines, ""])


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of a page for the site."""
    depth = page.file.src_uri.count("/")
    return re.sub(
        r"(\]\()([^)\s]+)(\))",
        lambda found: f"{found[1]}{site_link(found[2], depth)}{found[3]}",
        markdown,
    )


def site_link(link: str, depth: int) -> str:
    """Return the address on the site of a link in the repository, from a page `depth` folders
    deep."""
    up = "../" * depth
    path, mark, anchor = link.partition("#")
    name = re.sub(r"^(\.\./)+", "", path)
    for file, target in OUTSIDE_PAGES.items():
        if name == file:
            return f"{up}{target}{mark}{anchor}"
    if name.rstrip("/") == "benchmarks/results":
        return f"{up}records/index.md"
    if name.startswith("benchmarks/results/"):
        return f"{up}records/{name.removeprefix('benchmarks/results/')}{mark}{anchor}"
    if name.startswith("examples/"):
        return f"{up}{name}"
    if name.startswith("docs/"):
        return f"{up}{name.removeprefix('docs/')}{mark}{anchor}"
    return link
