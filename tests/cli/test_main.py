import subprocess
import sys

import pytest
import torch
import typer
from typer.testing import CliRunner

from shoal.cli import console, main
from shoal.errors import DataError, MissingError, ShoalError, UsageError


def command_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=main.Commands, pretty_exceptions_enable=False)

    @app.command()
    def break_() -> None:
        raise error

    app.callback()(main.options)
    return app


def command_that_says() -> typer.Typer:
    app = typer.Typer(cls=main.Commands, pretty_exceptions_enable=False)

    @app.command()
    def talk() -> None:
        console.log("hello")
        console.log_detail("a trifle")

    app.callback()(main.options)
    return app


def test_a_result_for_a_program_is_written_unchanged() -> None:
    app = typer.Typer(cls=main.Commands)
    name = "red\x1b[31m\x1b]0;title\x07.jpg"

    @app.command()
    def table() -> None:
        console.result(f"path\n{name}", {}, as_json=False)

    app.callback()(main.options)
    assert CliRunner().invoke(app, ["table"]).stdout == f"path\n{name}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ShoalError("w"), 1),
        (UsageError("w"), 2),
        (DataError("w"), 3),
        (MissingError("w"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_one_line_on_stderr_with_its_exit_code(error: BaseException, code: int) -> None:
    run = CliRunner().invoke(command_that_raises(error), ["break-"])
    assert run.exit_code == code
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith(("error: w", "interrupted; "))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")]
)
def test_out_of_memory_errors_name_what_to_lower(error: Exception) -> None:
    run = CliRunner().invoke(command_that_raises(error), ["break-"])
    assert run.exit_code == 1
    assert run.stderr.startswith("error: out of memory; ")


def test_unexpected_errors_are_one_line_and_debug_prints_the_traceback() -> None:
    app = command_that_raises(KeyError("oops"))
    plain = CliRunner().invoke(app, ["break-"])
    assert plain.exit_code == 1
    assert plain.stderr == "error: KeyError: 'oops'; run `shoal --debug …` for details\n"
    assert "Traceback" in CliRunner().invoke(app, ["--debug", "break-"]).stderr


def test_version_and_unknown_command() -> None:
    assert CliRunner().invoke(main.app, ["--version"]).stdout.startswith("shoal ")
    wrong = CliRunner().invoke(main.app, ["docto"])
    assert wrong.exit_code == 2
    assert "doctor" in wrong.stderr


@pytest.mark.parametrize("place", ["before", "behind"])
def test_general_options_may_precede_or_follow_the_command(place: str, monkeypatch) -> None:
    app = command_that_says()

    def invoke(*flags: str) -> str:
        return (
            CliRunner()
            .invoke(app, [*flags, "talk"] if place == "before" else ["talk", *flags])
            .stderr
        )

    assert invoke() == "hello\n"
    assert invoke("-v") == invoke("--verbose") == "hello\na trifle\n"
    assert invoke("-q") == invoke("--quiet") == invoke("-q", "-v") == ""
    assert invoke() == "hello\n"  # options of an earlier call have no effect


def test_help_imports_no_large_package_and_starts_with_an_example() -> None:
    """Importing any of these packages would slow down --help by seconds."""
    asking = [sys.executable, "-X", "importtime", "-m", "shoal", "--help"]
    run = subprocess.run(asking, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in run.stderr.splitlines()}
    assert {"shoal", "typer"} <= loaded
    assert not loaded & {
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "PIL",
        "matplotlib",
        "transformers",
        "yaml",
        "jinja2",
    }
    assert run.stdout.index("shoal doctor") < run.stdout.index("Options:")
