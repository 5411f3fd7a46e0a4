"""The command line: parses, calls, prints."""

from __future__ import annotations


def main() -> None:
    """Entry point of `npu-matrix` and `python -m harness`."""
    try:
        from harness.cli.app import main as run
    except KeyboardInterrupt:
        # No work has started, so there is no message; 130 is the exit code of `harness.errors`.
        raise SystemExit(130) from None
    run()
