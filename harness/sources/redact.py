"""Removes credentials from text: those in URLs, and tokens and keys of a known form."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

MASK = "***"
# As documented by their issuers: Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, JSON Web Token, PEM. An
# identifier such as `hf_config_path` does not match: a Hugging Face token has no second underscore.
SECRET_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{12,}\b(?!_)|\bgh[pousr]_[A-Za-z0-9]{12,}|\bgithub_pat_\w{12,}|\bglpat-[\w-]{12,}"
    r"|\bsk-[\w-]{16,}|\bxox[abeprs]-[\w-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\beyJ[\w-]{8,200}\.[\w-]{8,4000}\.[\w-]*"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
# The header of a request, and assignments in a shell whose variable says that it is secret. A value that is
# itself a variable or a placeholder is none.
_NAMED_SECRET = re.compile(
    r"""(?P<name>\b[Aa]uthorization["']?\s*[:=]\s*["']?(?:[Bb]asic|[Bb]earer|[Tt]oken)\s+"""
    r"""|\b[A-Z][A-Z0-9_]{0,60}(?:TOKEN|PASSWORD|PASSWD|SECRET|(?:API|ACCESS|SECRET|PRIVATE)_KEY)=["']?)"""
    r"""[^\s"';&|,)$*<{][^\s"';&|,)]{7,4000}"""
)
# User name and password at the start of a URL in text; a URL ends at white space or one of '"`,()<>. What
# follows a colon and is no port is a password, which may contain characters that should have been encoded.
_CREDENTIALS = re.compile(
    r"""://(?:[^\s'"`,()<>/]{1,2000}|[^\s'"`<>/@:\[]{0,200}:(?!\d{1,5}(?:[/?#,\s]|$))[^\s'"`<>]{1,2000})@"""
)
# The query of a URL in text, and a fragment with values. The fragment of a package's URL is its hash or name.
_QUERY = re.compile(
    r"""(?P<url>://[^\s'"`,()<>?#]{1,2000})"""
    r"""(?P<query>\?[^\s'"`,()<>#]{1,4000})?"""
    r"""(?P<fragment>#(?!(?:sha\d+|md5|egg|subdirectory)=)[^\s'"`,()<>=]{1,200}=[^\s'"`,()<>]{1,4000})?"""
)

# ECMA-48: control sequences, operating-system commands and strings, and other two-byte escapes. A string
# without an end is cut at the end of its line, so that the following lines are not lost.
ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)


def mask_secrets(text: str) -> str:
    """`text` without tokens and keys of a known form, and without values that their name calls secret."""
    return _NAMED_SECRET.sub(lambda match: f"{match['name']}{MASK}", SECRET_SHAPES.sub(MASK, text))


def redact_url(url: str) -> str:
    """`url` without its user name, password, query and fragment; a mask shows that it had credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return redact_text(url)
    _user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{MASK}@{host}" if at else host, query="", fragment=""))


def redact_text(text: str) -> str:
    """`text` in which the credentials and the query of every URL are masked."""
    if "://" not in text:
        return text
    return _QUERY.sub(_without_query, _CREDENTIALS.sub(f"://{MASK}@", text))


def _without_query(match: re.Match[str]) -> str:
    query, fragment = match["query"], match["fragment"]
    return f"{match['url']}{f'?{MASK}' if query else ''}{f'#{MASK}' if fragment else ''}"
