"""Runs read out of somebody else's ledger: nothing of it is changed, and nothing is believed unchecked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.digest import digest_bytes
from harness.ledger.ledger_schema import schema_version
from harness.ledger.stored_shape import plan_fits, run_fits

#: The schema from which on plans stand in a table of their own.
WITH_PLANS = 2


def runs_of(file: Path) -> Iterator[tuple[tuple[object, ...], str, str]]:
    """(run id, start, end, exit code, argv, host), plan's digest and plan of every run that can be read.

    Runs without a plan that fits its digest and can be read are left out, as is all of an older schema and
    what is damaged.
    """
    source = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        if schema_version(source) < WITH_PLANS:
            return
        rows = source.execute(
            "SELECT run_id, started, finished, exit_code, argv, host, digest, body "
            "FROM runs JOIN plans ON plan = digest"
        )
        for *run, digest, body in rows:
            # A migration named plans by their run.
            fits = digest in {digest_bytes(str(body).encode()), run[0]}
            if fits and _believed(run, str(body)):
                yield tuple(run), str(digest), str(body)
    except sqlite3.DatabaseError:
        # Its outcomes are what counts, and as far as they can be read those are taken already.
        return
    finally:
        source.close()


def _believed(run: Sequence[Any], body: str) -> bool:
    """Whether the run and its plan have the form that commands read; one that has not would stop them all."""
    try:
        argv, host = (json.loads(str(text)) for text in run[4:])
        return run_fits(run[:4], argv, host) and plan_fits(json.loads(body))
    except (ValueError, RecursionError):
        return False
