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
# User name and password at the start of a URL in text; a URL ends at white space or one of '"`,()<>.
_CREDENTIALS = re.compile(r"""://(?P<user>[^\s'"`,()<>/]*)@""")

# ECMA-48: control sequences, operating-system commands and strings, and other two-byte escapes. A string
# without an end is cut at the end of its line, so that the following lines are not lost.
ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)


def mask_secrets(text: str) -> str:
    """`text` without tokens and keys of a known form."""
    return SECRET_SHAPES.sub(MASK, text)


def redact_url(url: str) -> str:
    """`url` without its user name and password."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{_masked_user(user)}@{host}")) if at else url


def redact_text(text: str) -> str:
    """`text` with credentials removed from every URL in it."""
    return _CREDENTIALS.sub(lambda match: f"://{_masked_user(match['user'])}@", text)


def _masked_user(user: str) -> str:
    """The user name with a masked password. A name without a password is a token and is masked too."""
    name, colon, _password = user.partition(":")
    return f"{name}:****" if colon else "****"
