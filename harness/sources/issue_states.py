"""The states of issues on GitHub, asked for on demand and remembered in a file with their date."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import InputError, Location

FILE_NAME = "upstream-issues.json"
SCHEMA = "npu-matrix.upstream-issues"
DEFAULT_API = "https://api.github.com"
TIMEOUT_S = 20.0
MAX_ANSWER = 2_000_000
#: The file is written by this command, but anybody can edit it.
MAX_FILE = 10_000_000
ISSUE = re.compile(r"https://github\.com/([\w.-]{1,100})/([\w.-]{1,100})/(?:issues|pull)/(\d{1,9})\b")

SHORT = re.compile(r"(?<![\w./-])([\w-][\w.-]{0,99})/([\w.-]{1,100})#(\d{1,9})\b")


@dataclass(frozen=True, kw_only=True)
class IssueState:
    """An issue as last seen: `open`, `closed` or `merged`. checked: Unix seconds, 0 if nobody has asked."""

    url: str
    state: str = ""
    title: str = ""
    checked: float = 0.0


class _StoredIssue(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    state: str
    title: str = ""
    checked: float = Field(ge=0, allow_inf_nan=False)


class _Schema(BaseModel):
    name: str
    version: int


class _StoredIssues(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    schema_: _Schema = Field(alias="schema")
    issues: dict[str, _StoredIssue]


def issues_in(text: str) -> tuple[str, ...]:
    """The addresses of issues on GitHub in a text, each once; `OWNER/NAME#1` is one too."""
    found = {one.start(): one[0] for one in ISSUE.finditer(text)}
    found |= {
        one.start(): f"https://github.com/{one[1]}/{one[2]}/issues/{one[3]}" for one in SHORT.finditer(text)
    }
    return tuple(dict.fromkeys(found[place] for place in sorted(found)))


def read_issue_states(file: Path) -> dict[str, IssueState]:
    """Address -> state as last seen; empty without the file. InputError if it is damaged."""
    try:
        if file.stat().st_size > MAX_FILE:
            raise InputError(
                "this file is too large", where=Location(file), why=f"more than {MAX_FILE} bytes"
            )
        stored = _StoredIssues.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise InputError(
            "the states of upstream issues cannot be read",
            where=Location(file),
            why=str(error).splitlines()[0],
            fix="delete the file and run `npu-matrix expect refresh`",
        ) from None
    if (stored.schema_.name, stored.schema_.version) != (SCHEMA, 1):
        raise InputError("this file has another schema", where=Location(file), fix=f"expected {SCHEMA} 1")
    return {
        url: IssueState(url=url, state=one.state, title=one.title, checked=one.checked)
        for url, one in stored.issues.items()
        if ISSUE.fullmatch(url)
    }


def write_issue_states(file: Path, states: Iterable[IssueState]) -> None:
    """Replace the file, sorted by address, so that its changes are easy to review."""
    content = {
        "schema": {"name": SCHEMA, "version": 1},
        "issues": {
            one.url: {"state": one.state, "title": one.title, "checked": one.checked}
            for one in sorted(states, key=lambda one: one.url)
            if one.checked
        },
    }
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(file)


def ask_issue_state(
    url: str, environ: Mapping[str, str] | None = None, now: float | None = None
) -> IssueState:
    """The state of an issue today. InputError for another address; OSError or ValueError without an answer.

    environ: GITHUB_API_URL names the interface of an own server, GITHUB_TOKEN the token for it.
    """
    environ = os.environ if environ is None else environ
    found = ISSUE.fullmatch(url)
    if found is None:
        raise InputError(f"{url!r} is no issue on GitHub")
    api = environ.get("GITHUB_API_URL") or DEFAULT_API
    if urlsplit(api).scheme not in {"http", "https"}:
        raise InputError("GITHUB_API_URL is no address", why="it must begin with https://")
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked above
        f"{api.rstrip('/')}/repos/{found[1]}/{found[2]}/issues/{found[3]}",
        headers={"Accept": "application/vnd.github+json", "User-Agent": "npu-matrix"},
    )
    if token := environ.get("GITHUB_TOKEN"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
        body = json.loads(answer.read(MAX_ANSWER))
    if not isinstance(body, dict) or not isinstance(body.get("state"), str):
        raise ValueError("the answer has no state")
    pull = body.get("pull_request")
    merged = isinstance(pull, dict) and bool(pull.get("merged_at"))
    return IssueState(
        url=url,
        state="merged" if merged else body["state"][:30],
        title=str(body.get("title") or "")[:300],
        checked=time.time() if now is None else now,
    )


def refresh_issue_states(
    urls: Iterable[str], known: Mapping[str, IssueState], environ: Mapping[str, str] | None = None
) -> tuple[dict[str, IssueState], dict[str, str]]:
    """The states of issues today, and why those that could not be asked for keep their last state."""
    found = {url: known.get(url, IssueState(url=url)) for url in urls}
    failed: dict[str, str] = {}
    for url in found:
        answer = _answer(url, environ)
        if isinstance(answer, IssueState):
            found[url] = answer
        else:
            failed[url] = answer
    return found, failed


def _answer(url: str, environ: Mapping[str, str] | None) -> IssueState | str:
    """The state of an issue, or why there is no answer."""
    try:
        return ask_issue_state(url, environ)
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
