"""How a program that makes updates through verl's classes ends: one line, an exit code, no process group."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from harness.errors import HarnessError


def run_role(what: str, work: Callable[[], Mapping[str, Any]]) -> int:
    """Do the work and say how long it took; what stops it goes to stderr, with its own exit code.

    work: returns facts, of which `verl` and `seconds` are told.
    """
    try:
        facts = work()
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        distributed = import_module("torch").distributed
        if distributed.is_initialized():
            distributed.destroy_process_group()
    print(f"{what} with verl {facts['verl']} in {facts['seconds']} s")
    return 0
