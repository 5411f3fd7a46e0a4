"""The states of upstream issues: asked for once, remembered with a date, and never made up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.sources.issue_states import (
    IssueState,
    ask_issue_state,
    issues_in,
    read_issue_states,
    refresh_issue_states,
    write_issue_states,
)

URL = "https://github.com/verl-project/verl/issues/42"
PULL = "https://github.com/verl-project/verl/pull/43"
ANSWERS = {
    "/repos/verl-project/verl/issues/42": (200, {"state": "open", "title": "The loss is wrong"}),
    "/repos/verl-project/verl/issues/43": (
        200,
        {"state": "closed", "title": "Fix", "pull_request": {"merged_at": "2026-11-01T00:00:00Z"}},
    ),
    "/repos/a/b/issues/1": (200, ["no object"]),
}


class Handler(BaseHTTPRequestHandler):
    seen: list[str]

    def do_GET(self) -> None:
        Handler.seen.append(str(self.headers.get("Authorization")))
        code, body = ANSWERS.get(self.path, (404, {}))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    Handler.seen = []
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    thread.join()
    server.server_close()


def test_addresses_in_a_text() -> None:
    text = f"see {URL}, {PULL}#issuecomment-1 and https://example.org/issues/1; again {URL}."
    assert issues_in(text) == (URL, PULL)
    assert issues_in("https://github.com/a/b/issues/1evil") == ()


def test_the_short_form_of_a_reference_is_an_issue_too() -> None:
    assert issues_in("fixed by verl-project/verl#42 (not #7, nor a/b/c#1)") == (URL,)
    assert issues_in(f"{URL}#issuecomment-9 and verl-project/verl#42") == (URL,)


def test_states_are_asked_for_and_remembered(environ: dict[str, str], tmp_path: Path) -> None:
    states, failed = refresh_issue_states([URL, PULL], {}, environ)
    assert not failed
    assert {one.state for one in states.values()} == {"open", "merged"}
    file = tmp_path / "upstream-issues.json"
    write_issue_states(file, states.values())
    assert read_issue_states(file) == states
    assert states[URL].checked > 1.7e9


def test_an_issue_without_an_answer_keeps_its_last_state(environ: dict[str, str]) -> None:
    gone = "https://github.com/verl-project/verl/issues/99"
    before = IssueState(url=gone, state="open", title="t", checked=5.0)
    states, failed = refresh_issue_states([gone, "https://github.com/a/b/issues/1"], {gone: before}, environ)
    assert states[gone] == before
    assert failed[gone] == "HTTP 404"
    assert failed["https://github.com/a/b/issues/1"] == "the answer has no state"


def test_a_token_is_sent_only_if_there_is_one(environ: dict[str, str]) -> None:
    ask_issue_state(URL, environ)
    ask_issue_state(URL, {**environ, "GITHUB_TOKEN": "t"})
    assert Handler.seen == ["None", "Bearer t"]


def test_another_address_is_never_asked_for(environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match="no issue"):
        ask_issue_state("https://example.org/x/issues/1", environ)
    with pytest.raises(InputError, match="GITHUB_API_URL"):
        ask_issue_state(URL, {"GITHUB_API_URL": "file:///etc"})
    assert not Handler.seen


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": {"name": "x", "version": 1}, "issues": {}}',
        '{"schema": {"name": "npu-matrix.upstream-issues", "version": 1}, "issues": {"u": {"state": 1, "checked": 0}}}',
        '{"schema": {"name": "npu-matrix.upstream-issues", "version": 1}, "issues": {"u": {"state": "o", "checked": -1}}}',
    ],
)
def test_a_damaged_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "upstream-issues.json"
    file.write_text(text)
    with pytest.raises(InputError):
        read_issue_states(file)
    assert read_issue_states(tmp_path / "missing.json") == {}


def test_an_address_that_is_no_issue_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "upstream-issues.json"
    write_issue_states(file, [IssueState(url="javascript:alert(1)", state="open", checked=1.0)])
    assert read_issue_states(file) == {}
