"""The `shoal` command: its subcommands, and the conversion of errors to messages and exit codes."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shoal.allocator import reuse_freed_memory
from shoal.cli.cluster import cluster, embed
from shoal.cli.console import is_first_process, log_error, verbosity
from shoal.cli.discover import compare, demo, discover
from shoal.cli.finished_run import assign, evaluate, export, report
from shoal.cli.installation import cache, datasets, doctor, encoders
from shoal.cli.reproduce import reproduce
from shoal.cli.review import review
from shoal.errors import ShoalError, command_line, shown

# Commands that run in several processes; all others run in the main process only
SHARED = {"discover", "compare", "assign", "embed", "reproduce"}

# Options of `shoal` that may also come after the subcommand
GENERAL = ("--quiet", "-q", "--verbose", "-v", "--debug")


class Commands(TyperGroup):
    """A group that prints errors of its commands as one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the general options in front of the command, up to a lone `--`."""
        end = args.index("--") if "--" in args else len(args)
        words = sorted(args[:end], key=lambda word: word not in GENERAL)  # a stable sort
        return super().parse_args(ctx, [*words, *args[end:]])

    @command_line()
    def invoke(self, ctx: Any) -> Any:
        """Run the command; convert an exception to a message on stderr and an exit code."""
        if SHARED.isdisjoint(ctx._protected_args[:1]):
            if not is_first_process():
                return None
            os.environ.pop("WORLD_SIZE", None)  # the other processes of torchrun have returned
        try:
            return super().invoke(ctx)
        except ShoalError as error:
            _print_error(f"error: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            _print_error(
                "interrupted; resume `shoal discover` and `shoal compare` with --resume, and run "
                "any other command again"
            )
            raise typer.Exit(130) from error
        except Exception as error:
            is_for_typer = type(error).__module__.startswith(("typer", "click"))
            if is_for_typer or isinstance(error, BrokenPipeError):
                if hasattr(error, "message"):
                    error.message = shown(str(error.message))
                raise  # usage errors and exits, which typer prints
            from shoal.encoders.vision import is_out_of_memory  # imports torch

            message = f"error: {type(error).__name__}: {error}; run `shoal --debug …` for details"
            if is_out_of_memory(error):
                message = (
                    "error: out of memory; try a lower --input-size, a smaller --encoder, --set "
                    f"training.batch_size=64 or --device cpu ({str(error)[:120]})"
                )
            _print_error(message)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=Commands,
    name="shoal",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Discover the categories in a partly labeled image collection.

    \b
    shoal demo                                        try it on 498 photographs, offline
    shoal discover photos/ --labels labels.csv        discover the categories of images
    shoal compare photos/ --labels labels.csv         compare methods on your images
    shoal cluster features.npz --labels labels.csv    discover the categories of embeddings
    shoal report runs/photos                          write a run as an HTML page
    shoal review runs/photos                          review a run in a browser
    shoal evaluate runs/photos --truth truth.csv      score a run by true classes
    shoal assign runs/photos new/                     assign new images to a run's categories
    shoal embed photos/ --out features.npz            write the embeddings of images
    shoal export runs/photos --to hf --out photos-hf  export a run for other programs
    shoal datasets list                               list and verify benchmarks
    shoal reproduce 1 --root cub=DIR                  reproduce a table of the CMS paper
    shoal cache                                       list or delete the cache
    shoal doctor                                      check the installation
    shoal encoders list                               list the encoders
    """,
)
SHORT_HELP: dict[Callable[..., None], str] = {
    demo: "Try it on 498 photographs, offline.",
    discover: "Discover the categories of images.",
    compare: "Compare methods on your images.",
    cluster: "Discover the categories of embeddings.",
    report: "Write a run as an HTML page.",
    review: "Confirm, name, merge and split categories in a browser.",
    evaluate: "Score a run by true classes.",
    assign: "Assign new images to a run's categories.",
    embed: "Write the embeddings of images.",
    export: "Export a run for other programs.",
    reproduce: "Reproduce tables of the CMS paper.",
    cache: "List or delete the cache.",
    doctor: "Check the installation.",
}
for command, short_help in SHORT_HELP.items():
    app.command(short_help=short_help)(command)
app.add_typer(encoders, name="encoders")
app.add_typer(datasets, name="datasets")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from shoal import __version__

        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print more, such as a line per epoch.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
) -> None:
    verbosity.is_quiet = quiet
    verbosity.is_verbose = verbose
    verbosity.is_debug = debug


def _print_error(text: str) -> None:
    if verbosity.is_debug:
        for line in traceback.format_exc().split("\n"):
            log_error(line)
    log_error(text)


def main() -> None:
    """Run the command line.

    A process of torchrun exits without cleanup: threads of torch may abort a process that has
    finished, and torchrun would then report that all of them failed.
    """
    reuse_freed_memory()
    if os.environ.get("WORLD_SIZE", "1") == "1":
        app()
        return
    try:
        app()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))
