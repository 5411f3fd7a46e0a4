"""Opens the ledger of the state folder."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path

from harness.errors import HarnessError, InputError, Location
from harness.ledger.attestation.belief import Signers
from harness.ledger.attestation.ssh_keygen import Signer
from harness.ledger.store import FILE_NAME, Ledger
from harness.matrix.reading.load_matrix import load_matrix
from harness.settings import Settings

LOGGER = logging.getLogger(__name__)


def runner_signers(settings: Settings) -> Mapping[str, Signer]:
    """Runner name -> its keys; empty if matrix.yaml cannot be read, so that no signature counts."""
    try:
        matrix = load_matrix(settings.path("matrix"))
    except HarnessError as error:
        LOGGER.warning("note: no signature of a runner counts, because matrix.yaml cannot be read: %s", error)
        return {}
    families = matrix.axes["soc"].values if "soc" in matrix.axes else {}
    folder = settings.path("matrix").parent
    return {
        runner.name: Signer(
            name=runner.name,
            keys=runner.keys,
            namespace=runner.namespace,
            revoked=folder / runner.revoked_keys if runner.revoked_keys else None,
            socs=frozenset(families.get(family, {}).get("soc_name", family) for family in runner.socs),
        )
        for runner in matrix.runners.values()
        if runner.keys
    }


def open_ledger(settings: Settings, signers: Signers | None = None) -> Ledger:
    """Open the ledger of the state folder; log a warning if it was damaged.

    signers: the runners that can vouch for hardware outcomes of other machines, by default those that
    matrix.yaml names with keys.
    """
    believed = functools.cache(signers or functools.partial(runner_signers, settings))
    return _with_warnings(Ledger.open(settings.path("state"), signers=believed))


def read_ledger(settings: Settings, file: Path) -> Ledger:
    """Open another ledger file without changing anything beside it; log a warning if it is damaged.

    InputError if it is not a ledger.
    """
    return _with_warnings(Ledger.read(file, signers=lambda: runner_signers(settings)))


def _with_warnings(ledger: Ledger) -> Ledger:
    for notice in ledger.notices:
        LOGGER.warning("note: %s", notice)
    return ledger


def ledger_file(path: Path) -> Path:
    """The ledger file at `path`, a file or a state folder; InputError if there is none."""
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            "there is no ledger here", where=Location(path), fix=f"give a folder that contains {FILE_NAME}"
        )
    return file
