"""Parses one line of a log: removes the prefixes of multi-process launchers, and masks unsafe text."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from harness.sources.redact import ESCAPES, MASK, mask_secrets
from harness.verdict.triage.log_record import logfmt_level, read_record

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: More bytes than a cut or mixed line has that are no UTF-8.
CUT_BYTES = 3
LOST_ESCAPES = re.compile("\N{REPLACEMENT CHARACTER}?\\[\\d{1,2}(?:;\\d{1,2}){0,3}m")
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
LEVELS = "DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL"
PREFIXES = (
    # Ray's C++ processes: [2026-11-20 08:00:00,123 E 4242 4243] (raylet)
    re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{1,6} (?P<letter>[DIWECF]) \d{1,10} \d{1,10}\] ?"),
    # The time stamp of a CI runner, docker, Kubernetes or Python's logging.
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]?"),
    # Ray and vLLM: (WorkerDict pid=288089, ip=172.16.0.134), (EngineCore_DP0 pid=77).
    re.compile(r"\((?P<name>[^\s()]{1,80}) pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[^\s()]{1,60}))?\) ?"),
    # Ray's own processes: (raylet), (raylet, ip=10.0.0.2), (pid=77).
    re.compile(r"\((?P<daemon>raylet|gcs_server|pid=\d{1,10})(?:, ip=[^\s()]{1,60})?\) ?"),
    # The runtimes of Kubernetes: stderr F text.
    re.compile(r"std(?:out|err) [FP] "),
    # syslog and journald: Nov 20 08:00:00 node1 train[4242]: text
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [\w./@-]{1,60}\[\d{1,10}\]: ?"),
    # srun --label: `  3: text`.
    re.compile(r" {0,5}(?P<task>\d{1,6}): (?=\s|[A-Za-z(\[])"),
    # torchrun: [rank3]: and [default3]:
    re.compile(r"\[(?:rank|default|local_rank)(?P<rank>\d{1,6})\]: ?"),
    # mpirun --tag-output: [1,3]<stderr>:
    re.compile(r"\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?"),
    # A quotation in a thread, and the number that a viewer puts before a line.
    re.compile(r"(?:> ?){1,4}"),
    re.compile(r" {0,7}\d{1,7}(?:  |\t| \| )"),
    # docker compose: trainer-1  | text
    re.compile(r"(?P<service>[A-Za-z][\w.-]{0,60}) +\| "),
    # vLLM's formatter: ERROR 11-20 08:00:00 [core.py:708], and before 0.8 without the first bracket.
    re.compile(rf"(?P<level>{LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d (?:\[?[^\]\s\[]{{1,80}}:\d+\] ?)?"),
    # torch and glog: [E915 08:00:00.123456789 ProcessGroupHCCL.cpp:616], E0915 08:00:00.123000 77 api.py:869]
    re.compile(r"\[?(?P<glog>[DIWEF])\d{3,4} \d\d:\d\d:\d\d\.\d{1,9}(?: +\d{1,10})? [^\s\]]{1,120}:\d+\] ?"),
    # A source file after the level: [INFO] [aggregate_logger.py:54:log]:
    re.compile(
        rf"(?:\[(?P<named>{LEVELS})\] ?)?\[[\w./-]{{1,80}}\.(?:py|cc|cpp)(?::\d{{1,6}})(?::\w{{1,60}})?\]:? ?"
    ),
)
PREFIX = re.compile("|".join(prefix.pattern for prefix in PREFIXES))
#: The same for a line of bytes, without names of groups.
PREFIX_OF_BYTES = re.sub(r"\?P<\w+>", "?:", PREFIX.pattern).encode()
# A progress bar of tqdm, behind which another process or a traceback goes on in the same line.
_BAR = r"[^|\n\"']{0,80}\b\d{1,3}%\|[^|\n]{0,200}\| *[\d.]{1,12}\w?/[\d.]{1,12}\w? \[[^\]\n]{1,80}\]"
BAR, BAR_ALONE = re.compile(rf"{_BAR}(?=\s*\S)"), re.compile(rf"(?:{_BAR})?\s*$")
LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "C": "CRITICAL", "F": "FATAL"}
# A level at the beginning of a line: `ERROR: text`, `[ERROR] text`, `name - ERROR - text`.
LEVEL = re.compile(rf"(?:^|[\s\[:|-])(?P<level>{LEVELS})(?=[\s\]:|]|$)")
LEVEL_WITHIN = 90
# torch's warnings: [W file.cpp:8] Warning: text. Python's: x.py:8: RuntimeWarning: text.
TORCH_WARNINGS = ("[W ", "W NPU")
RANK = re.compile(r"(?:(?:\b|_)rank {0,8}[=:]? {0,2}|\bRankID:|_TP|_rank)(\d{1,6})\b", re.IGNORECASE)
REPEATED = re.compile(r" \[repeated (\d{1,9})x across cluster\]")
RANK_WITHIN = 300
BLANK = re.compile(r"\s")

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
#: A secret with blanks in it, which must be quoted, is not longer than this, and no secret longer than that.
QUOTED_SECRET, LONGEST_SECRET = 1024, 8192
#: How many texts are kept that were made safe: the ranks of a job report the same.
KEPT = 1024


MILD = frozenset({"DEBUG", "INFO", "NOTICE", "WARN", "WARNING"})


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """`body` is the text without prefixes. `process` names the process, "" for the main process.

    more: how many equal lines of other processes Ray left out. level: its logging level, "" if it has none.
    rest: the further lines of a message in a structured record.
    """

    body: str
    process: str = ""
    rank: int | None = None
    more: int = 0
    level: str = ""
    rest: tuple[str, ...] = ()

    @property
    def is_mild(self) -> bool:
        """Whether the program that wrote the line did not consider it an error."""
        return self.level in MILD

    @property
    def is_error(self) -> bool:
        """Whether the program that wrote the line considered it an error."""
        return self.level in {"ERROR", "CRITICAL", "FATAL"}


def plain(raw: bytes) -> str:
    """Bytes as text without terminal escapes; undecodable bytes are replaced."""
    text = _decoded(raw)
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    # Copying from a terminal can lose the escape character itself.
    return LOST_ESCAPES.sub("", text) if "m" in text and "[" in text else text


def _decoded(raw: bytes) -> str:
    """The text of a line in UTF-8, or in the encoding of Chinese systems if UTF-8 has few letters of it."""
    text = raw.decode("utf-8", "replace")
    if text.count(REPLACEMENT) > CUT_BYTES:
        with suppress(UnicodeDecodeError):
            return raw.decode("gb18030")
    return text


def _without_bars(text: str) -> str:
    """Of texts that overwrote each other, the last one that is no progress bar, without a bar before it."""
    parts = text.rstrip("\r\n").split("\r") if "\r" in text else [text.rstrip("\n")]
    shown_last = next((part for part in reversed(parts) if not BAR_ALONE.match(part)), parts[-1])
    return shown_last[found.end() :] if (found := BAR.match(shown_last)) else shown_last


def parse_line(raw: bytes) -> LogLine:
    """Parse a line in any encoding. Progress bars that were written into it are left out."""
    text = _without_bars(plain(raw))
    process, level, rank, more = "", "", None, 0
    rest: tuple[str, ...] = ()
    while True:
        record = read_record(text) if text.startswith("{") else None
        if record:
            text, rest, level = record.text, record.rest, level or record.level
        found = PREFIX.match(text)
        if not found or not found.end():
            break
        parts = found.groupdict()
        if parts.get("pid"):
            host = f"@{parts['ip']}" if parts.get("ip") else ""
            process = f"{parts['name']}:{parts['pid']}{host}"
        process = process or parts.get("service") or parts.get("daemon") or ""
        ranked = parts.get("rank") or parts.get("mpi") or parts.get("task")
        if ranked:
            rank = int(ranked)
            process = process or f"rank{rank}"
        letter = parts.get("letter") or parts.get("glog")
        level = level or parts.get("level") or parts.get("named") or LETTERS.get(letter or "", "")
        text = text[found.end() :]
    repeated = REPEATED.search(text)
    if repeated:
        more = int(repeated[1])
        text = text[: repeated.start()] + text[repeated.end() :]
    if rank is None:
        stated = RANK.search(f"{process} {text[:RANK_WITHIN]}")
        rank = int(stated[1]) if stated else None
    level = level or _level(text) or logfmt_level(text)
    return LogLine(body=text, process=process, rank=rank, more=more, level=level, rest=rest)


def _level(text: str) -> str:
    stated = LEVEL.search(text[:LEVEL_WITHIN])
    if stated:
        return stated["level"]
    return "WARNING" if "Warning: " in text[:RANK_WITHIN] or text.startswith(TORCH_WARNINGS) else ""


def masked(text: str) -> str:
    """The text with a mask for everything that looks like a secret."""
    return SECRETS.sub(
        lambda match: f"{match['key'] or ''}{MASK}" + ("@" if match[0].endswith("@") else ""),
        mask_secrets(text),
    )


def _beginning(text: str, limit: int) -> tuple[str, bool]:
    """More of a long text than `limit`, up to a blank, where no secret without quotation marks is cut.

    Masking a text of 16 kB takes 4 ms, which a log with thousands of long lines would spend for nothing.
    """
    least = 2 * limit + QUOTED_SECRET
    if len(text) <= least + LONGEST_SECRET:
        return text, False
    blank = BLANK.search(text, least, least + LONGEST_SECRET)
    return text[: blank.start() if blank else least + LONGEST_SECRET], True


@lru_cache(maxsize=KEPT)
def shown(text: str, limit: int = SHOWN) -> str:
    """A line that is safe in a terminal, a CI log and a page: no control characters, commands or secrets."""
    text, is_cut = _beginning(text, limit)
    # An escape can hide the name of a secret or be in the middle of it: mask before and after removing
    # escapes.
    text = ESCAPES.sub("", masked(text))
    text = masked(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text).replace("\n", " ").replace("\r", " "))
    if is_cut:
        # Of a secret that was cut the mask may have missed the rest.
        text = text[:-QUOTED_SECRET]
    # GitHub's runner executes `##[command]` anywhere in a line and `::command::` at its beginning.
    text = text.replace("##[", "# #[")
    if text.lstrip().startswith("::"):
        text = text.replace("::", ": :")
    return text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
