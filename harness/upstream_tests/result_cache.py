"""The stored results of test files. One counts only if npu-matrix of this user stored it for this key."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from harness.cache_seal import sealed, unsealed
from harness.evidence import DeviceFacts
from harness.measurements import read_shape
from harness.serialisation import to_json
from harness.upstream_tests.in_cell.file_results import FileResult


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """The result of a test file, and the device on which it was obtained."""

    result: FileResult
    device: DeviceFacts


@dataclass(frozen=True)
class ResultCache:
    """A folder with one sealed file for each key."""

    folder: Path

    def read(self, key: str) -> StoredResult | None:
        """The result that was stored for this key; None if there is none, or if the file was changed."""
        try:
            stored = self._file(key).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        text = unsealed(key, stored)
        return None if text is None else read_shape(StoredResult, json.loads(text))

    def write(self, key: str, one: StoredResult) -> None:
        """Store the result; several processes may do that at the same time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self._file(key)
        partial = target.with_suffix(f".{os.getpid()}")
        partial.write_text(sealed(key, json.dumps(to_json(one))), encoding="utf-8")
        partial.replace(target)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.json"
