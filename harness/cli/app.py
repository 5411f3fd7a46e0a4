"""The command group: global options, loading of commands, and error messages with exit codes."""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import click
from click.shell_completion import CompletionItem

from harness import __version__
from harness.cli.completion import complete_profiles
from harness.cli.stated_exit import StatedExit
from harness.disk_full import is_disk_full, without_space
from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_CODES,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    HarnessError,
    InfrastructureError,
    InputError,
    caused_by,
)
from harness.settings import ENVIRONMENT_PREFIX, OPTIONS, Settings, find_root, flag_of, load_settings
from harness.sources.redact import redact_text

#: Command -> (module of this package, one-line help). A module is imported when its command is used.
COMMANDS = {
    "plan": ("plan", "Show the cells, checks and tasks that a run would execute, with their estimated cost."),
    "explain": ("explain", "Show where the versions of a cell come from, or why a combination is excluded."),
    "run": ("run", "Run the planned checks, resume an interrupted run, and write the report."),
    "init": ("init", "Start using npu-matrix in a repository: write matrix.yaml and a gate workflow."),
    "demo": ("demo", "Run the default profile of the shipped matrix, from anywhere."),
    "status": ("status", "Show the verdicts of a run as a grid in the terminal."),
    "report": ("report", "Write the report of a stored run."),
    "why-rerun": ("why_rerun", "Show what changed since the checks of a cell last ran."),
    "lock": (
        "lock",
        "Export a cell with every package version pinned: requirements, script, Dockerfile, ...",
    ),
    "api": ("api", "Check that every name a package imports exists in the pinned version of its dependency."),
    "lint": ("lint", "Check a launch script against the lint rules and the configuration of a verl version."),
    "mirrors": ("mirrors", "Fetch the upstream repositories that stacks and patches name into the cache."),
    "knowledge": ("knowledge", "Show or update what each release of the packages of the stack has."),
    "recipe": ("recipe", "Print the command that starts the training of a cell."),
    "patches": ("patches", "Check, rebase, import, export and summarise patch stacks."),
    "matrix": ("matrix", "Validate matrix.yaml, print its schema, compare published compatibility tables."),
    "numerics": ("numerics", "Test verl's losses on a device, or measure the precision of the device."),
    "gate": ("gate", "Decide whether a change may be merged, by comparing its verdicts with its base."),
    "ci": ("ci", "Write the gate for a CI system: GitLab, GitCode or Jenkins."),
    "jobs": ("jobs", "Write jobs that run the plan on hosts with NPUs: Kubernetes, Slurm, compose, runners."),
    "expect": ("expect", "List and update the expected failures."),
    "suites": ("suites", "Show and export the results of upstreams' test suites."),
    "triage": ("triage", "Find the root cause of a failed job in its log."),
    "ledger": ("ledger", "Merge outcomes of other machines into the ledger of this checkout."),
    "junit": ("junit", "Merge JUnit files of any test runner."),
    "bisect": ("bisect", "Find the change between a good cell and a bad cell that makes a check fail."),
    "advise": (
        "advise",
        "Find the newest stacks for a host, with evidence, risks and what blocks newer ones.",
    ),
    "inspect": (
        "inspect",
        "Are the versions that an environment, an image or a list has compatible?",
    ),
    "cleanup": ("cleanup", "Remove containers, environments and cached files that nothing uses any more."),
    "rehearse": (
        "rehearse",
        "Run cells for NPUs on a stand-in for their host; all evidence is simulated.",
    ),
    "first-contact": (
        "first_contact",
        "Measure a host with NPUs for the first time, and write one file that can be sent.",
    ),
    "doctor": ("doctor", "Show what this host can run, and how to fix what it cannot."),
}

#: Commands that show something, and use the shipped matrix in a folder without matrix.yaml. `run` and `gate`
#: do not: where matrix.yaml was deleted or the folder is the wrong one, they must fail.
USE_SHIPPED_MATRIX = frozenset(
    {
        "plan",
        "explain",
        "lock",
        "api",
        "lint",
        "recipe",
        "patches",
        "matrix",
        "numerics",
        "advise",
        "inspect",
    }
)

EXIT_CODE_TABLE = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


class _ReaderGoneError(Exception):
    """The reader of the output is gone (`| head`). click would exit with 1, which means a failed check."""


#: Errors that `--debug` shows like any other command line.
_WITHOUT_TRACEBACK = (click.ClickException, click.exceptions.Abort, KeyboardInterrupt, _ReaderGoneError)


class LazyGroup(click.Group):
    """Loads a command's module only when that command is used, so that `--help` stays fast."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As in click, which prints `--help` and `--version` here, with the error of a closed output."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise _ReaderGoneError from None

    def invoke(self, ctx: click.Context) -> Any:
        """As in click, with the error of a closed output."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGoneError from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of the commands, in the order of COMMANDS."""
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
        """As in click; the error for an unknown command suggests the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As in click, without importing the module of every command."""
        commands = [
            CompletionItem(name, help=text)
            for name, (_module, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands with their one-line help, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_module, text) in COMMANDS.items()])


#: Options whose value may be empty: settings that have no value by default, and a filter that selects all.
MAY_BE_EMPTY = frozenset({flag_of(option.name) for option in OPTIONS if not option.default} | {"--filter"})


def _refuse_empty_values(arguments: Sequence[str]) -> None:
    """UsageError for an empty argument, for example of an unset variable of a shell.

    Otherwise it would mean the same as leaving the option out, which selects something else.
    """
    for previous, argument in pairwise(["", *arguments]):
        name, equals, value = argument.partition("=")
        if not argument:
            name = previous
        elif not (name.startswith("--") and equals and not value):
            continue
        if name not in MAY_BE_EMPTY:
            after = f" after {name!r}" if name.startswith("-") else ""
            raise click.UsageError(f"the argument{after} is empty: give a value, or leave the option out")


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InputError("the current folder has been deleted", fix="change to another folder") from None
    except OSError as error:
        raise InputError(
            "the current folder cannot be determined", why=str(error), fix="change to another folder"
        ) from error


def _print_log() -> None:
    """Print the log messages of `harness.workspace`, such as progress, on standard error."""

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _complain(record.getMessage())

    log = logging.getLogger("harness.workspace")
    log.setLevel(logging.INFO)
    log.handlers = [Printed()]


def _show_config(settings: Settings) -> None:
    width = max(len(name) for name in settings.values)
    for name, setting in settings.values.items():
        click.echo(f"{name:<{width}}  {redact_text(setting.value) or '(empty)'}  [{setting.origin}]")


_HELP = {option.name: option.help for option in OPTIONS}


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
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="The checkout. Default: the nearest parent folder that has a matrix.yaml.",
)
@click.option("--matrix", help=_HELP["matrix"])
@click.option("--state", help=_HELP["state"])
@click.option("--cache", help=_HELP["cache"])
@click.option("--profile", help=_HELP["profile"], shell_complete=complete_profiles)
@click.option("--mirrors", help=_HELP["mirrors"])
@click.option("--engine", help=_HELP["engine"])
@click.option("--found-python", help=_HELP["found_python"])
@click.option("--runner", help="Name of this machine among the runners of matrix.yaml.")
@click.option("--base-image", help="Base image of container cells. Default: the image that the lock names.")
@click.option("--show-config", is_flag=True, help="Print every setting and where its value comes from.")
@click.option("--debug", is_flag=True, help="Show Python tracebacks of errors.")
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
    """Check which versions of the Ascend NPU reinforcement-learning stack are compatible, with evidence."""
    settings = load_settings(flags, os.environ, (root or find_root(_current_folder())).absolute())
    _print_log()
    if ctx.invoked_subcommand in USE_SHIPPED_MATRIX and settings.lacks_matrix:
        settings = settings.with_shipped_matrix()
        _complain(f"note: there is no matrix.yaml here: using the one of npu-matrix {__version__}")
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
            # Characters that the terminal cannot show must not make the command fail.
            stream.reconfigure(errors="backslashreplace")
    if debug:
        sys.excepthook = _print_traceback
    try:
        _refuse_empty_values(arguments)
        code = app.main(args=arguments, prog_name="npu-matrix", standalone_mode=False)
        if isinstance(code, StatedExit):
            click.echo(code.line)
        sys.stdout.flush()
        sys.exit(int(code) if isinstance(code, int) else 0)
    except (Exception, KeyboardInterrupt) as error:
        if debug and not isinstance(error, _WITHOUT_TRACEBACK):
            raise
        sys.exit(_report_error(error, arguments))


def _report_error(error: BaseException, arguments: Sequence[str]) -> int:
    """Print an error on standard error; returns the exit code."""
    if isinstance(error, HarnessError):
        _print_error(error, arguments)
        return error.exit_code
    if isinstance(error, click.ClickException):
        usage = io.StringIO()
        error.show(usage)
        _complain(usage.getvalue().rstrip("\n"))
        return error.exit_code
    if isinstance(error, _ReaderGoneError):
        _drop_output()
        return EXIT_INCOMPLETE
    if isinstance(error, OSError):
        return _report_os_error(error, arguments)
    if isinstance(error, UnicodeEncodeError):
        name = str(error.object)[max(0, error.start - 60) : error.end + 20]
        _complain(f"error: a file or folder name is not valid UTF-8: {name!a}")
        click.echo("  do:  rename the file or folder, or use another one", err=True)
        return EXIT_BAD_INPUT
    if isinstance(error, click.exceptions.Abort) or _caused_by_interrupt(error):
        click.echo("interrupted; the same command resumes", err=True)
        return EXIT_INTERRUPTED
    if is_disk_full(error):
        _print_error(caused_by(InfrastructureError(str(error)), error), arguments)
        return EXIT_INCOMPLETE
    _complain(f"error: internal error: {type(error).__name__}: {error}")
    click.echo("  do:  run the command again with --debug and report the traceback", err=True)
    return EXIT_INCOMPLETE


def _report_os_error(error: OSError, arguments: Sequence[str]) -> int:
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    fix = "check the path and its permissions; --debug shows a traceback"
    shown = caused_by(InfrastructureError(what, fix=fix), error)
    with contextlib.suppress(OSError):
        _print_error(shown, arguments)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return shown.exit_code


def _complain(text: str) -> None:
    """Print a message for the user on standard error, without the secrets of this machine.

    Error messages quote what failed, for example the address of an index, and output is stored by CI systems.
    """
    from harness.sources.secrets.masking import Masker

    click.echo(Masker.of_command(os.environ).text(text), err=True)


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Like Python's `sys.excepthook`, without the secrets of this machine."""
    _complain("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


def _print_error(error: HarnessError, arguments: Sequence[str]) -> None:
    """Print the problems. The system does not say which disk is full; then the folders are named that are."""
    _complain("\n".join(f"error: {problem}" for problem in error.problems))
    if error.disk_full and not any(problem.where for problem in error.problems):
        named = [path for argument in arguments for path in (argument, argument.partition("=")[2])]
        set_paths = [os.environ[name] for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]
        for folder in without_space([*named, *set_paths, tempfile.gettempdir(), "."]):
            _complain(f"  full: {folder}")


def _caused_by_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused the error: in a class body, Python 3.11 raises a RuntimeError instead."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _drop_output() -> None:
    """Discard buffered output: Python would write it at exit, and a failure there changes the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
