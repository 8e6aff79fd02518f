"""Run commands in tests, and check what all refusals have in common."""

from functools import cache

from typer import testing
from typer.testing import CliRunner, Result

from shoal.cli.main import app

# Building all commands takes longer than refusing wrong input.
testing._get_command = cache(testing._get_command)


def shoal(*arguments: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)))


def discover(*arguments: object) -> Result:
    return shoal("discover", *arguments, "--device", "cpu")


def refused(run: Result, code: int, *words: str) -> None:
    """Check for a refusal: one line on stderr that starts with 'error:' and contains `words`,
    nothing on stdout, no traceback.
    """
    assert (run.exit_code, run.stdout) == (code, ""), run.stderr
    last = run.stderr.splitlines()[-1]
    assert last.startswith("error: "), run.stderr
    assert "Traceback" not in run.stderr
    assert all(word in last for word in words), last
