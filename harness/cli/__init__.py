"""The command line: parses arguments, calls `harness.workspace` and prints the results.

Start with `app.py`, the command group. Each command has a module of its own, for example `plan_command.py`.
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
