"""The command line: parses, calls, prints."""

from __future__ import annotations


def main() -> None:
    """Entry point of `npu-matrix` and `python -m harness`."""
    try:
        from harness.cli.app import main as run
    except KeyboardInterrupt:
        # Nothing has begun, so there is nothing to say; the code is that of `harness.errors`.
        raise SystemExit(130) from None
    run()
