"""Makes untrusted text safe to show: hidden characters become visible, and the length is limited."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import datetime, timezone
from functools import lru_cache

from harness.digest import digest_bytes

TEXT_LIMIT = 2_000
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")

# Bidirectional overrides and isolates, zero-width characters, controls, lone surrogates, line separators:
# with these a text can look different from what it contains.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def visible(text: str) -> str:
    """`text` with every hidden character written as `⟦U+202E⟧`; tabs and newlines stay."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda found: f"⟦U+{ord(found[0]):04X}⟧", text)


def as_bytes(text: str) -> bytes:
    """`text` as UTF-8; lone surrogates are written as escapes."""
    return text.encode("utf-8", "backslashreplace")


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """At most `limit` characters of `text`, and a note how many more there are."""
    if len(text) <= limit:
        return text
    note = f"… ({len(text) - limit:,} more characters)"
    # The note may be longer than the text that it replaces.
    return text if len(text) <= limit + len(note) else text[:limit] + note


def plain_log(text: str) -> str:
    """A log without terminal colours and with universal newlines; a progress bar keeps its last state."""
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n"))


def file_name(identity: str) -> str:
    """A file name for an id: the id if that is safe, otherwise its safe letters and a digest."""
    if SAFE_NAME.fullmatch(identity) and identity == identity.lower():
        return identity
    folded = unicodedata.normalize("NFKD", identity).encode("ascii", "ignore").decode()
    letters = re.sub(r"[^A-Za-z0-9._-]+", "-", folded).strip("-._").lower()[:60] or "cell"
    return f"{letters}-{digest_bytes(identity.encode('utf-8', 'surrogatepass'))[:10]}"


@lru_cache(maxsize=4_096)
def moment(seconds: float) -> str:
    """Unix seconds as `2026-11-20 07:31 UTC`; a dash if they are no valid time."""
    try:
        when = datetime.fromtimestamp(seconds, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "—"
    return when.strftime("%Y-%m-%d %H:%M UTC") if seconds > 0 else "—"


@lru_cache(maxsize=4_096)
def iso(seconds: float) -> str:
    """Unix seconds as `2026-11-20T07:31:00Z`; "" if they are no valid time."""
    try:
        when = datetime.fromtimestamp(seconds, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ") if seconds > 0 else ""


def duration(seconds: float) -> str:
    """A duration in words: `12 ms`, `3.4 s`, `5 min 10 s`, `2 h 5 min`."""
    if not 0 < seconds < float("inf"):
        return "—"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """A number of bytes in words: `512 B`, `3.4 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def counted(count: int, singular: str, plural: str = "") -> str:
    """A number with its noun: `1 reason`, `1,200 reasons`; the plural adds an s unless it is given."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def number(value: float) -> str:
    """A number with three or four significant digits; whole numbers with all digits."""
    if not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or float(value).is_integer():
        whole = int(value)
        return str(whole) if abs(whole) < 10_000 else f"{whole:,}" if abs(whole) < 1e15 else f"{value:.3g}"
    magnitude = abs(value)
    return f"{value:.4g}" if 1e-3 <= magnitude < 1e6 else f"{value:.2e}"
