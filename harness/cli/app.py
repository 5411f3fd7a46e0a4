"""The command group: global options, commands loaded when used, errors turned into messages and codes."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from harness import __version__
from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_CODES,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    HarnessError,
)
from harness.settings import OPTIONS, Settings, load_settings

#: Command -> (module of this package, what `--help` says). Modules are imported when their command is used.
COMMANDS = {
    "plan": ("plan", "Show which tasks answer which cells, and what they cost."),
    "explain": ("explain", "Show why a cell is in or out, and where each of its facets comes from."),
    "run": ("run", "Run the plan, resume what was interrupted, report."),
    "status": ("status", "Show the grid of the latest run."),
    "report": ("report", "Write the report of the latest run again."),
    "why-rerun": ("why_rerun", "Show which facets changed since a cell's tasks last ran."),
    "lock": ("lock", "Export a cell with every package pinned: requirements, script, Dockerfile, ..."),
    "api": ("api", "Hold what packages take from each other against what the others have."),
    "lint": ("lint", "Lint a launch script against the rules and configuration of a verl version."),
    "recipe": ("recipe", "Render a cell's training as the command that starts it."),
    "patches": ("patches", "Check, follow, summarise, rebase, import and export patch stacks."),
    "matrix": ("matrix", "Validate matrix.yaml, print its schema, hold published tables against each other."),
    "numerics": ("numerics", "Judge verl's losses on a device, or record what its arithmetic is."),
    "gate": ("gate", "Say what a change newly breaks, against its base."),
    "expect": ("expect", "List and update the expected failures."),
    "triage": ("triage", "Say why a job failed, from its log."),
    "ledger": ("ledger", "Take outcomes of other machines into this checkout's ledger."),
    "junit": ("junit", "Merge the JUnit files of any test runner."),
    "bisect": ("bisect", "Find the change between a good and a bad cell that makes a check fail."),
    "frontier": ("frontier", "Find the newest versions that go together, and what blocks newer ones."),
    "cleanup": ("cleanup", "Remove what dead runs left and nobody uses, and nothing else."),
    "doctor": ("doctor", "Show what this host can run, what not, why, and the fix."),
}

EXIT_CODE_TABLE = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


class _ReaderGoneError(Exception):
    """Nobody reads the output any more (`| head`). click would end with 1, which means a failure here."""


class LazyGroup(click.Group):
    """Loads a command's module only when that command is used, so that `--help` stays fast."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click does; `--help` and `--version` print here."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise _ReaderGoneError from None

    def invoke(self, ctx: click.Context) -> Any:
        """As click does."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGoneError from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Commands in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"harness.cli.{COMMANDS[cmd_name][0]}_command")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command named when there is no such command."""
        import difflib

        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands from their one-line texts alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_module, text) in COMMANDS.items()])


def _find_root(start: Path) -> Path:
    """The nearest folder upwards with a matrix.yaml, else `start`."""
    for folder in (start, *start.parents):
        if (folder / "matrix.yaml").is_file():
            return folder
    return start


def _show_config(settings: Settings) -> None:
    width = max(len(name) for name in settings.values)
    for name, setting in settings.values.items():
        click.echo(f"{name:<{width}}  {setting.value or '(empty)'}  [{setting.origin}]")


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=f"\b\nExit codes:\n{EXIT_CODE_TABLE}\n\n\b\nExamples:\n"
    "  npu-matrix plan\n"
    "  npu-matrix run --only 'verl-0-9-1*' --check loss\n"
    "  npu-matrix --show-config\n\n\b\n"
    'Completion: eval "$(_NPU_MATRIX_COMPLETE=bash_source npu-matrix)"',
)
@click.option(
    "--root", type=click.Path(file_okay=False, path_type=Path), help="The checkout. Default: found upwards."
)
@click.option("--matrix", help=OPTIONS[0].help)
@click.option("--state", help=OPTIONS[1].help)
@click.option("--cache", help=OPTIONS[2].help)
@click.option("--profile", help=OPTIONS[4].help)
@click.option("--engine", help="What cells are built with: venv, docker or podman.")
@click.option("--base-image", help="Base image of container cells. Default: the lock's own.")
@click.option("--show-config", is_flag=True, help="Print every setting and where it came from.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(__version__, prog_name="npu-matrix")
@click.pass_context
def app(
    ctx: click.Context,
    /,
    root: Path | None,
    show_config: bool,
    debug: bool,  # noqa: ARG001 - read by main() before click runs
    **flags: str | None,
) -> None:
    """Which versions of the Ascend NPU reinforcement-learning stack go together, with evidence."""
    settings = load_settings(flags, os.environ, (root or _find_root(Path.cwd())).absolute())
    ctx.obj = settings
    os.environ.update(settings.exported())
    if show_config:
        _show_config(settings)
        ctx.exit(0)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(0)


def main(argv: list[str] | None = None) -> Any:
    """Run the command line and exit with a documented code; a traceback only with `--debug`."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal in GBK, or a file name that is not UTF-8, must not cost the answer.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app.main(args=arguments, prog_name="npu-matrix", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except HarnessError as error:
        if debug:
            raise
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo("interrupted; the same command resumes", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("interrupted; the same command resumes", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except _ReaderGoneError:
        _drop_output()
        sys.exit(EXIT_INCOMPLETE)
    except OSError as error:
        if debug:
            raise
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        click.echo(f"error: {what}", err=True)
        click.echo("  do:  check disk, permissions and path; --debug shows what it was needed for", err=True)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        sys.exit(EXIT_INCOMPLETE)
    except UnicodeEncodeError as error:
        if debug:
            raise
        name = str(error.object)[max(0, error.start - 60) : error.end + 20]
        click.echo(f"error: this holds a name that is not UTF-8: {name!a}", err=True)
        click.echo("  do:  rename the file or folder, or name another one", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except Exception as error:
        if debug:
            raise
        if _came_of_an_interrupt(error):
            click.echo("interrupted; the same command resumes", err=True)
            sys.exit(EXIT_INTERRUPTED)
        click.echo(f"error: internal error: {type(error).__name__}: {error}", err=True)
        click.echo("  do:  run it again with --debug and report the traceback", err=True)
        sys.exit(EXIT_INCOMPLETE)


def _came_of_an_interrupt(error: BaseException | None) -> bool:
    """Whether a Ctrl-C stands at its beginning: Python 3.11 turns one in a class body into a RuntimeError."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _drop_output() -> None:
    """What is still buffered would be written when Python ends, and change the exit code where it fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
