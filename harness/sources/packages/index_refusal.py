"""Whether each package index answers for a package. uv hides an index that refuses the credentials.

With the strategy `unsafe-best-match`, uv treats an index that responds with HTTP 401, 403 or 407 as one that
lacks the package. With `first-index` and one index only, it reports such a response.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from harness.sources.packages.fetch_failure import FetchFailure, fetch_failure
from harness.sources.packages.index_settings import IndexSettings, uv_binary
from harness.sources.packages.program_runner import ProgramRunner
from harness.sources.packages.uv_errors import UvFailure
from harness.sources.packages.uv_settings import write_uv_settings
from harness.sources.redact import redact_text

REFUSAL_TIMEOUT_S = 60.0
_OTHER_SOURCES = ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


def refusal_behind(
    failure: UvFailure, settings: IndexSettings, command: ProgramRunner
) -> FetchFailure | None:
    """The failure of an index that may have what uv missed, but does not answer for it, or None."""
    suspect = failure.subject or next(iter(failure.blamed), "") if failure.rests_on_indexes else ""
    return _refused_index(suspect, settings, command) if suspect else None


def _refused_index(package: str, settings: IndexSettings, command: ProgramRunner) -> FetchFailure | None:
    variables = settings.uv_environment()
    for name in _OTHER_SOURCES:
        variables.pop(name, None)
    for entry in () if settings.no_index else settings.index_entries:
        one = {**variables, "UV_DEFAULT_INDEX": entry, "UV_INDEX_STRATEGY": "first-index"}
        with tempfile.TemporaryDirectory(prefix="npu-matrix-index-") as folder:
            work = Path(folder)
            (work / "requirements.in").write_text(f"{package}\n", encoding="utf-8")
            write_uv_settings(work, "")
            argv = [
                *(uv_binary(), "pip", "compile", "requirements.in", "--no-deps", "--no-build", "--universal"),
                *(
                    "--python",
                    sys.executable,
                    "--python-version",
                    "3.11",
                    "--prerelease",
                    "allow",
                    "--quiet",
                    "--color",
                    "never",
                ),
            ]
            done = command(argv, env=one, cwd=work, timeout=REFUSAL_TIMEOUT_S)
        if done.returncode != 0 and (failure := fetch_failure(redact_text(done.tail))):
            return failure
    return None
