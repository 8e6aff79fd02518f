"""The `shoal` command: its commands by name, and the one place where errors become text and exit
codes.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shoal.allocator import keep_freed_memory
from shoal.cli import (
    assign,
    cache,
    cluster,
    compare,
    datasets,
    demo,
    discover,
    doctor,
    embed,
    evaluate,
    export,
    report,
    reproduce,
    review,
)
from shoal.cli.console import complain, is_first_process, verbosity
from shoal.cli.encoders import encoders
from shoal.errors import ShoalError
from shoal.text import shown

INTERRUPTED = 130

SHARED = ("discover", "compare", "cluster", "assign", "embed", "reproduce")
"""Commands whose work several processes share; any other is done by the first of them alone."""

GENERAL = ("--quiet", "-q", "--verbose", "-v", "--no-color", "--debug")
"""Options of `shoal` itself that may also stand behind the command."""


class Commands(TyperGroup):
    """A group whose commands may raise: what a user caused is one line, anything else asks for
    --debug.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the options that go with every command from wherever they stand, up to a lone
        `--`.
        """
        end = args.index("--") if "--" in args else len(args)
        general = [word for word in args[:end] if word in GENERAL]
        own = [word for word in args[:end] if word not in GENERAL]
        return super().parse_args(ctx, [*general, *own, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn an exception into a message on stderr and an exit code."""
        if not any(word in SHARED for word in ctx._protected_args[:1]):
            if not is_first_process():
                return None
            os.environ.pop("WORLD_SIZE", None)  # of torchrun: nobody else is there
        try:
            return super().invoke(ctx)
        except ShoalError as error:
            _tell(f"error: {error}", ctx)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            _tell(
                "interrupted; `shoal discover` and `shoal compare` go on with --resume, every "
                "other command when it is given again",
                ctx,
            )
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:
            is_for_typer = type(error).__module__.startswith(("typer", "click"))
            if is_for_typer or isinstance(error, BrokenPipeError):
                if hasattr(error, "message"):
                    error.message = shown(str(error.message))
                raise  # usage errors and exits, which the group prints itself
            from shoal.encoders.embed import is_out_of_memory  # torch, which --help does without

            said = f"error: {type(error).__name__}: {error}; run `shoal --debug …` to see where"
            if is_out_of_memory(error):
                said = (
                    "error: out of memory; lower --input-size, take a smaller --encoder, free the "
                    f"GPU of others, or give --device cpu ({str(error)[:120]})"
                )
            _tell(said, ctx)
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
    shoal demo                                        the whole path on 498 photographs, offline
    shoal discover photos/ --labels labels.csv        the categories of a folder of images
    shoal compare photos/ --labels labels.csv         which method is best for these images?
    shoal cluster features.npz --labels labels.csv    categories of ready embeddings
    shoal report runs/photos                          see what a run found
    shoal review runs/photos                          confirm, name, merge and split it
    shoal evaluate runs/photos --truth truth.csv      a run against the truth
    shoal assign runs/photos new/                     new images onto a run's categories
    shoal embed photos/ --out features.npz            embeddings, for `shoal cluster` and others
    shoal export runs/photos --to hf --out photos-hf  a run for other programs
    shoal datasets list                               the benchmarks: list, verify, prepare
    shoal reproduce 1 --root cub=DIR                  a table of the paper, ours beside it
    shoal cache                                       the decoded images that are kept
    shoal doctor                                      is everything here that shoal needs?
    shoal encoders list                               the encoders, and which weights are here
    """,
)
SHORT_HELP: dict[Callable[..., None], str] = {
    demo.demo: "The whole path on 498 photographs, offline.",
    discover.discover: "The categories of a folder of images.",
    compare.compare: "Which method is best for a folder of images?",
    cluster.cluster: "The categories of ready embeddings.",
    report.report: "See what a run found.",
    review.review: "Confirm, name, merge and split what a run found.",
    evaluate.evaluate: "A run against the truth.",
    assign.assign: "New images onto a run's categories.",
    embed.embed: "Embeddings of images.",
    export.export: "A run for other programs.",
    reproduce.reproduce: "The paper's tables, ours beside them.",
    cache.cache: "The decoded images that are kept.",
    doctor.doctor: "Is everything here that shoal needs?",
}
for command, short_help in SHORT_HELP.items():
    app.command(short_help=short_help)(command)
app.add_typer(encoders, name="encoders")
app.add_typer(datasets.app, name="datasets")


def _print_version(asked: bool) -> None:
    if asked:
        from shoal import __version__

        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say nothing but the result and errors.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say more, such as a line per epoch.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Draw bars without color, as NO_COLOR does.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Options that go with every command, before or behind it."""
    ctx.obj = {"debug": debug}
    verbosity.is_quiet = quiet
    verbosity.is_verbose = verbose
    verbosity.has_color = not no_color


def _tell(text: str, ctx: Any) -> None:
    if (ctx.obj or {}).get("debug"):
        for line in traceback.format_exc().split("\n"):
            complain(line)
    complain(text)


def main() -> None:
    """Run the command line.

    A process of torchrun then ends at once: torch's own threads have been seen to abort one whose
    work was done, and torchrun then calls all of them failed.
    """
    keep_freed_memory()
    if os.environ.get("WORLD_SIZE", "1") == "1":
        app()
        return
    code: object = None
    try:
        app()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    if code is None:
        code = 0
    os._exit(code if isinstance(code, int) else 1)
