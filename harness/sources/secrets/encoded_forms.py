"""The forms in which tools print a secret: plain, escaped for JSON, URLs and shells, as base64 and hex."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

#: Shorter forms occur in ordinary text by chance.
MINIMUM_FORM = 6
#: Longer forms are cut into pieces, so that a part of a long secret is found, too.
PIECE = 48
_SPECIAL = re.compile(r"([^\w@%+=:,./-])")


def encoded_forms(secret: str) -> set[str]:
    """All forms of `secret`, without white space, cut into pieces of at most `2 * PIECE` characters."""
    forms = {without_space(form) for form in _forms(secret)}
    return {piece for form in forms if len(form) >= MINIMUM_FORM for piece in _pieces(form)}


def without_space(text: str) -> str:
    """`text` without white space: tools wrap long lines anywhere."""
    return "".join(text.split())


def _forms(secret: str) -> Iterator[str]:
    escaped = json.dumps(secret)[1:-1]
    yield from (secret, escaped, json.dumps(escaped)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    yield from (
        repr(secret)[1:-1],
        ascii(secret)[1:-1],
        html.escape(secret),
        html.escape(secret, quote=False),
    )
    data = secret.encode("utf-8", "surrogateescape")
    for percent in (quote(data), quote(data, safe=""), quote_plus(data), quote(data, safe="!$&'()*+,;=:@")):
        yield percent
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), percent)
        yield percent.replace("%", "%25")
    yield from (shlex.quote(secret).strip("'"), secret.replace("'", "'\\''"), _SPECIAL.sub(r"\\\1", secret))
    yield from (data.hex(), data.hex().upper(), repr(data)[2:-1], data.decode("utf-8", "replace"))
    # As part of a longer text (`user:password`), a secret starts at one of three positions in a group.
    for skipped, first in ((0, 0), (1, 2), (2, 3)):
        whole = base64.b64encode(b"\0" * skipped + data).decode()
        # The character after the last whole one depends on what follows; without a continuation it is known.
        for form in (whole[first : (skipped + len(data)) * 8 // 6], whole[first:].rstrip("=")):
            yield from (form, form.replace("+", "-").replace("/", "_"), quote(form, safe=""))


def _pieces(form: str) -> Iterator[str]:
    if len(form) <= 2 * PIECE:
        yield form
        return
    starts = range(0, len(form) - PIECE, PIECE)
    yield from (form[start : start + PIECE] for start in starts)
    # The last piece overlaps the one before it, so that it is never a few common characters.
    yield form[-PIECE:]
