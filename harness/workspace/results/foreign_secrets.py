"""Finds credentials in the ledgers of other machines before they are merged.

This program masks credentials before it stores an outcome. Other versions of it may not have done so, and the
files can have been edited.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.ledger.artifacts import ArtifactStore
from harness.ledger.attestation.statement import Attestation
from harness.ledger.outcome_record import outcome_body
from harness.outcome import Outcome
from harness.sources.redact import MASK
from harness.sources.secrets.masking import MAX_BYTES, Masker, text_of
from harness.sources.secrets.stored_variables import Storage, is_credential_name, storage_of


class ForeignSecrets:
    """Recognises credentials of this machine, those of known form, and variables that name them."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._all = Masker.of_host(environ)

    def problem(self, outcome: Outcome, attestations: Iterable[Attestation], files: ArtifactStore) -> str:
        """Where an outcome, one of its signed statements or one of its files contains a credential, or ""."""
        body = outcome_body(outcome)
        if self.has_credential(body):
            for path, text in _texts(json.loads(body), ""):
                if self._differs(text, body):
                    return f"{path} contains a credential"
        for name, value in _variables(outcome.environment):
            if value != MASK and is_credential_name(name) and storage_of(name) is Storage.NAME:
                return f"the environment has the value of {name}"
        if any(self.has_credential(f"{one.statement}\n{one.signature}") for one in attestations):
            return "a signed statement contains a credential"
        for ref in outcome.files:
            if problem := self._file_problem(files.path(ref.digest)):
                return f"the file {ref.name} {problem}"
        return ""

    def has_credential(self, text: str) -> bool:
        """Whether a text contains a credential."""
        return self._differs(text, text)

    def text(self, text: str) -> str:
        """`text` without credentials."""
        return self._all.text(text)

    def _file_problem(self, path: Path) -> str:
        if not path.is_file():
            return ""
        if path.stat().st_size > MAX_BYTES:
            return f"is not searched for credentials: it has more than {MAX_BYTES >> 20} MiB"
        data = path.read_bytes()
        text = text_of(data)
        found = self._all.occurs_in(data) if text is None else self.has_credential(text)
        return "contains a credential" if found else ""

    def _differs(self, text: str, public: str) -> bool:
        """Whether `text` has a credential; what an unlisted variable contains may be ordinary text here."""
        return self._all.text(text) != text and Masker.of_host(self._environ, public).text(text) != text


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, text) for all names and texts of a JSON value."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield path, name
            yield from _texts(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, path)


def _variables(value: Any) -> Iterator[tuple[str, str]]:
    """(name, value) for everything in a JSON value that has the name of an environment variable."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, str) and name.isupper():
                yield name, item
            yield from _variables(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _variables(item)
