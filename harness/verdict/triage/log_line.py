"""Parses one line of a log: removes the prefixes of multi-process launchers, and masks unsafe text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.sources.redact import ESCAPES, MASK, mask_secrets

CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
PREFIXES = (
    # The time stamp of a CI runner, docker or Kubernetes.
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]?"),
    # Ray and vLLM: (WorkerDict pid=288089, ip=172.16.0.134), (EngineCore_DP0 pid=77).
    re.compile(r"\((?P<name>[^\s()]{1,80}) pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[^\s()]{1,60}))?\) ?"),
    # torchrun: [rank3]: and [default3]:
    re.compile(r"\[(?:rank|default|local_rank)(?P<rank>\d{1,6})\]: ?"),
    # docker compose: trainer-1  | text
    re.compile(r"(?P<service>[A-Za-z][\w.-]{0,60}) +\| "),
    # vLLM's formatter: ERROR 11-20 08:00:00 [core.py:708]
    re.compile(
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]\s]{1,80}:\d+\] ?)?"
    ),
)
RANK = re.compile(r"(?:\brank[ =:]{1,2}|\bRankID:|_TP|_rank)(\d{1,6})\b", re.IGNORECASE)
REPEATED = re.compile(r" \[repeated (\d{1,9})x across cluster\]")
RANK_WITHIN = 300

# Secrets after a name (`token=`), an option (`--password`) or a URL scheme. A quoted value may contain
# spaces.
SECRETS = re.compile(
    r"(?P<key>(?:(?:api|access|secret|account|private)[_-]?key|token|passw(?:or)?d|passphrase|secret|cookie"
    r"|credentials?|authorization)[\"']?\s*[=:]\s*[\"']?(?:(?:bearer|basic)\s+)?"
    r"|\bbearer\s+|--[\w-]{0,40}(?:token|password|secret|key)\s+|\bcurl\s[^|;&\n]{0,200}?-u\s+[\"']?)"
    r"(?:(?<=[\"'])[^\"'\n]{6,512}(?=[\"'])|[^\s\"',;]{6,})"
    r"|(?<=://)[^/\s@'\"]{1,512}@",
    re.IGNORECASE,
)
SHOWN = 400


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """`body` is the text without prefixes. `process` names the process, "" for the main process.

    more: how many equal lines of other processes Ray left out.
    """

    body: str
    process: str = ""
    rank: int | None = None
    more: int = 0


def plain(raw: bytes) -> str:
    """Bytes as text without terminal escapes; undecodable bytes are replaced."""
    text = raw.decode("utf-8", "replace")
    return ESCAPES.sub("", text) if "\x1b" in text else text


def parse_line(raw: bytes) -> LogLine:
    """Parse a line in any encoding. If it contains carriage returns, the text after the last one counts."""
    text = plain(raw).rstrip("\r\n").rpartition("\r")[2]
    process, rank, more = "", None, 0
    while True:
        found = next((match for prefix in PREFIXES if (match := prefix.match(text)) and match.end()), None)
        if found is None:
            break
        parts = found.groupdict()
        if parts.get("pid"):
            host = f"@{parts['ip']}" if parts.get("ip") else ""
            process = f"{parts['name']}:{parts['pid']}{host}"
        elif parts.get("service"):
            process = process or parts["service"]
        if parts.get("rank"):
            rank = int(parts["rank"])
            process = process or f"rank{rank}"
        text = text[found.end() :]
    repeated = REPEATED.search(text)
    if repeated:
        more = int(repeated[1])
        text = text[: repeated.start()] + text[repeated.end() :]
    if rank is None:
        stated = RANK.search(f"{process} {text[:RANK_WITHIN]}")
        rank = int(stated[1]) if stated else None
    return LogLine(body=text, process=process, rank=rank, more=more)


def masked(text: str) -> str:
    """The text with a mask for everything that looks like a secret."""
    return SECRETS.sub(
        lambda match: f"{match['key'] or ''}{MASK}" + ("@" if match[0].endswith("@") else ""),
        mask_secrets(text),
    )


def shown(text: str, limit: int = SHOWN) -> str:
    """A line that is safe in a terminal, a CI log and a page: no control characters, commands or secrets."""
    # An escape can hide the name of a secret or be in the middle of it: mask before and after removing
    # escapes.
    text = ESCAPES.sub("", masked(text))
    text = masked(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text).replace("\n", " ").replace("\r", " "))
    # GitHub's runner executes `##[command]` anywhere in a line and `::command::` at its beginning.
    text = text.replace("##[", "# #[")
    if text.lstrip().startswith("::"):
        text = text.replace("::", ": :")
    return text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
