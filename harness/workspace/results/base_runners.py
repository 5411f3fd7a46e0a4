"""The runners whose signatures a gate believes: those that the base names with the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import InfrastructureError, InputError
from harness.ledger.attestation.ssh_keygen import Signer
from harness.plan.change.revision import extract_revision, resolve_revision
from harness.settings import Settings
from harness.workspace.open_ledger import runner_signers
from harness.workspace.planning.revision_files import settings_at


def runners_of_base(settings: Settings, base: str) -> Mapping[str, Signer]:
    """The runners with the same keys here and at the revision `base`; if it is no revision, those of here.

    Otherwise a change could name a key of its own and bring the outcomes that it signed.
    """
    here = runner_signers(settings)
    try:
        revision = resolve_revision(settings.root, base)
    except (InputError, InfrastructureError):
        return here
    with temporary_folder() as place:
        there = runner_signers(settings_at(settings, extract_revision(settings.root, revision, place)))
        return {
            name: signer
            for name, signer in here.items()
            if name in there and _identity(signer) == _identity(there[name])
        }


def _identity(signer: Signer) -> tuple[Signer, bytes | None]:
    """The runner, with the content of its list of revoked keys instead of the name of the file."""
    return replace(signer, revoked=None), _content(signer.revoked)


def _content(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        return file.read_bytes()
    except OSError:
        return b""
