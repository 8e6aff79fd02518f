"""Write docs/cli.md, the reference of the command line, from what `--help` prints: `make docs`."""

from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from shoal.cli.main import app

TARGET = Path(__file__).with_name("cli.md")

HEADER = """# The command line

Written by `make docs` from what `--help` prints; a test compares. Results go to stdout, everything
else to stderr. `--quiet`, `--verbose`, `--no-color` and `--debug` go with every command, before or
behind it. Exit codes: 0 ok, 1 failure, 2 usage, 3 bad data, 4 a package or weights missing, 130
interrupted.
"""


def commands(group: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command as the words that call it, groups before their commands."""
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))


def render() -> str:
    """The reference as Markdown."""
    parts = [HEADER]
    for words in commands(get_command(app)):
        found = CliRunner().invoke(
            app, [*words, "--help"], prog_name="shoal", env={"COLUMNS": "80"}
        )
        lines = "\n".join(line.rstrip() for line in found.stdout.strip("\n").splitlines())
        parts.append(f"\n## {' '.join(['shoal', *words])}\n\n```text\n{lines}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
