"""Write docs/cli.md, the reference of the command line, from `--help`: `make docs`."""

from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from shoal.cli.main import app

TARGET = Path(__file__).with_name("cli.md")

HEADER = """# The command line

This is the output of `--help`, written by `make docs`. Results go to stdout, everything else to
stderr. Every command also accepts `--quiet`, `--verbose` and `--debug`, before or
after its name. Exit codes: 0 success, 1 failure, 2 usage error, 3 bad data, 4 missing package or
weights, 130 interrupted.
"""


def commands(group: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, a group before its commands."""
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))


def render() -> str:
    """Return the reference as Markdown."""
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
