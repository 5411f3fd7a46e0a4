"""The command line: parses, calls, prints."""

from __future__ import annotations


def main() -> None:
    """Entry point of `npu-matrix` and `python -m harness`."""
    from harness.cli.app import main as run

    run()
