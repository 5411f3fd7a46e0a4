"""The command line: parses arguments, calls `harness.workspace` and prints the results.

Start with `app.py`, the command group. Each command has a module of its own, for example `plan_command.py`.
A command module imports what its options need, and each function imports what it calls, so that `--help`
and shell completion of a command do not load the libraries that the command works with.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of `npu-matrix` and `python -m harness`."""
    try:
        from harness.cli.app import main as run
    except KeyboardInterrupt:
        # Nothing was started, so there is no message. 130 is `harness.errors.EXIT_INTERRUPTED`.
        raise SystemExit(130) from None
    run()
