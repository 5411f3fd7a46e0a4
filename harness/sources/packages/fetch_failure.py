"""Recognising failed downloads and full disks in the output of uv."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.disk_full import says_disk_full
from harness.errors import InfrastructureError
from harness.sources.redact import redact_text, redact_url

FETCH = re.compile(r"Failed to fetch:?\s+`?(?P<url>[a-z+]+://[^\s`]+)`?")
CAUSE = re.compile(r"^\s*(?:cause|Caused by):\s+(?P<text>.*)$", re.MULTILINE)
STATUS = re.compile(r"HTTP status \w+ error \((?P<code>\d{3})")
REFUSED = (
    re.compile(
        r"index URL\s+\((?P<url>[^)\s]+)\)\s+could\s+not\s+be\s+queried\s+due\s+to\s+"
        r"(?P<cause>[^()]+\((?P<code>40[137])[^)]*\))"
    ),
    re.compile(r"index\s+\((?P<url>[^)\s]+)\)\s+returned\s+(?P<cause>a\s+(?P<code>40[137])\s+[^.]+)\."),
)
PROXY_REFUSES = 407
#: What uv reports instead of a status if the proxy refuses the connection to an https address.
PROXY_REFUSES_TUNNEL = "proxy authorization required"
REFUSED_STATUS = (401, 403, PROXY_REFUSES)
NETWORK_WORDS = (
    "error sending request",
    "error decoding response body",
    "dns error",
    "connection refused",
    "connection reset",
    "invalid peer certificate",
    "network was disabled",
    "network connectivity is disabled",
    "operation timed out",
)
# Error texts of the operating system and of uv for problems of this machine, other than a full disk.
MACHINE_WORDS = (
    "read-only file system",
    "too many open files",
    "failed to initialize cache",
    "input/output error (os error 5)",
    "cannot allocate memory (os error 12)",
)


@dataclass(frozen=True, kw_only=True)
class FetchFailure:
    """The URL that could not be fetched ("" if unknown), the innermost cause, and the HTTP status or 0."""

    url: str
    cause: str
    status: int

    def error(self) -> InfrastructureError:
        """The error to raise. A failed download is no statement about a cell."""
        fix = "check the network, the proxy and pip's index settings (`pip config debug`), then run again"
        if self.status in REFUSED_STATUS:
            fix = "the index requires valid credentials: see pip's index URL, the netrc file or the keyring"
        if self.status == PROXY_REFUSES:
            fix = "correct the user name and password in the address of the proxy"
        what = redact_url(self.url) or "from the package index"
        return InfrastructureError(f"could not fetch {what}", why=self.cause, fix=fix)


def fetch_failure(output: str) -> FetchFailure | None:
    """The failed download that `output` of uv reports, or None if it reports something else."""
    if refused := next(filter(None, (pattern.search(output) for pattern in REFUSED)), None):
        return FetchFailure(
            url=refused["url"], cause=" ".join(refused["cause"].split()), status=int(refused["code"])
        )
    match = FETCH.search(output)
    lowered = output.lower()
    if not match and not any(word in lowered for word in NETWORK_WORDS):
        return None
    causes = CAUSE.findall(output)
    status = STATUS.search(output)
    code = int(status["code"]) if status else 0
    return FetchFailure(
        url=match["url"].rstrip(".,") if match else "",
        cause=redact_text(causes[-1].strip() if causes else _last_line(output)),
        status=PROXY_REFUSES if PROXY_REFUSES_TUNNEL in lowered else code,
    )


def machine_failure(output: str) -> InfrastructureError | None:
    """An error if `output` reports a full disk or a similar problem of this machine, otherwise None."""
    line = next((line for line in output.splitlines() if _is_of_machine(line)), None)
    if line is None:
        return None
    return InfrastructureError(
        "this machine could not store the environment",
        why=line.strip(),
        fix="make NPU_MATRIX_CACHE and UV_CACHE_DIR folders that can be written, then run again",
    )


def _is_of_machine(line: str) -> bool:
    return says_disk_full(line) or any(word in line.lower() for word in MACHINE_WORDS)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
