"""Secrets are masked in every form in which tools print them, and ordinary text stays."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import os
import re
import shlex
import subprocess
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sources.secrets.encoded_forms import MINIMUM_FORM, without_space
from harness.sources.secrets.masking import MaskedStream, Masker

SECRET = "Zq7/p+x'w\"ä %k$2&\\canary"
PLAIN = "canary0Plain9Value"


def authorization(secret: str) -> str:
    return "Authorization: Basic " + base64.b64encode(f"someone:{secret}".encode()).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda secret: f"password={secret}.",
    "JSON": lambda secret: json.dumps({"password": secret}),
    "JSON in JSON": lambda secret: json.dumps(json.dumps({"password": secret})),
    "JSON with UTF-8": lambda secret: json.dumps([secret], ensure_ascii=False),
    "Python": lambda secret: repr({"password": secret}),
    "Python bytes": lambda secret: repr(secret.encode()),
    "URL": lambda secret: f"x {quote(secret, safe='')} y",
    "URL, path": lambda secret: f"x {quote(secret)} y",
    "URL, lower case": lambda secret: re.sub("%..", lambda match: match[0].lower(), quote(secret, safe="")),
    "URL in URL": lambda secret: f"x {quote(quote(secret, safe=''), safe='')} y",
    "form": lambda secret: f"a=b&c={quote_plus(secret)}&d=e",
    "HTML": lambda secret: f"<td>{html.escape(secret)}</td>",
    "shell": lambda secret: f"curl -u me:{shlex.quote(secret)}",
    "shell, printf %q": lambda secret: (
        subprocess.run(
            ["bash", "-c", 'printf %q "$0"', secret], capture_output=True, text=True, check=True
        ).stdout
    ),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 for URLs": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "basic authorization": authorization,
    "base64, wrapped": lambda secret: base64.encodebytes(f"someone:{secret * 9}".encode()).decode(),
    "hex": lambda secret: secret.encode().hex(),
    "wrapped by a terminal": lambda secret: "\n".join(textwrap.wrap(f"the password is {secret}", 9)),
    "wrapped with an indent": lambda secret: f"  {secret[:5]}\n      {secret[5:]}",
    "docker configuration": lambda secret: json.dumps(
        {"auths": {"registry.example": {"auth": base64.b64encode(f"u:{secret}".encode()).decode()}}}
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", [SECRET, PLAIN])
def test_a_secret_is_masked_in_every_form(form: str, secret: str) -> None:
    if form == "shell, printf %q":
        # bash writes bytes that are not ASCII as octal numbers.
        secret = secret.replace("ä", "a")
    text = FORMS[form](secret)
    masked = Masker([secret]).text(text)
    squeezed = without_space(masked)
    plain = without_space(text)
    # Of the secret at most the edges remain that share a base64 character with their neighbours.
    assert "***" in squeezed
    if "canary" in plain:
        assert "canary" not in squeezed
    removed = len(plain) - len(squeezed.replace("***", ""))
    assert removed >= len(without_space(secret)) - 2
    assert masked.count("\n") == text.count("\n")


@given(st.text(st.characters(codec="ascii", min_codepoint=33), min_size=8, max_size=90), st.data())
def test_a_secret_in_parts_of_a_stream_is_masked(secret: str, data: st.DataObject) -> None:
    text = f"first line\nbefore {secret} after\nlast line\n"
    lines = text
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(18, 18 + len(secret)))
        lines = f"{lines[:at]}\n{lines[at:]}"
    stream = MaskedStream(Masker([secret]))
    out = "".join(stream.feed(line) for line in lines.splitlines(keepends=True)) + stream.finish()
    assert set(secret) <= {"*"} or without_space(secret) not in without_space(out)
    assert out.startswith("first line\n")
    assert out.endswith("last line\n")


def test_a_secret_that_continues_another_one_is_masked_as_a_whole() -> None:
    stream = MaskedStream(Masker(["token-0123", "token-0123-and-more"]))
    assert stream.feed("a token-0123\n") + stream.feed("-and-more b\n") + stream.finish() == "a ***\n b\n"


def test_a_private_key_that_nobody_knew_is_masked_over_many_lines() -> None:
    stream = MaskedStream(Masker(()))
    lines = ["-----BEGIN PRIVATE KEY-----\n", "MIIEvQ\n", "AbCdEf\n", "-----END PRIVATE KEY-----\n", "next\n"]
    assert "".join(map(stream.feed, lines)) + stream.finish() == "***\nnext\n"


@given(st.text(max_size=200))
def test_without_a_secret_nothing_changes(text: str) -> None:
    masker = Masker(["a-secret-that-does-not-occur"])
    if "://" not in text:
        assert masker.text(text) == text


def test_addresses_lose_credentials_and_queries_and_keep_host_and_path() -> None:
    masker = Masker(())
    assert masker.text("get https://me:pw@index.example:8443/team/simple/?token=abc#x=y done") == (
        "get https://***@index.example:8443/team/simple/?***#*** done"
    )
    assert masker.text("https://host/a-1.0.whl#sha256=0123abcd") == "https://host/a-1.0.whl#sha256=0123abcd"


def test_json_is_masked_in_texts_and_names() -> None:
    value = {"a": [PLAIN, 1, None, {f"x-{PLAIN}": f"https://me:{PLAIN}@host/p"}]}
    assert Masker([PLAIN]).json(value) == {"a": ["***", 1, None, {"x-***": "https://***@host/p"}]}


def test_text_files_are_masked_and_other_files_with_a_secret_are_removed(tmp_path: Path) -> None:
    masker = Masker([PLAIN])
    (tmp_path / "log.txt").write_text(f"one\n{PLAIN}\n")
    (tmp_path / "clean.bin").write_bytes(b"\0clean")
    (tmp_path / "raw.bin").write_bytes(b"\0" + PLAIN.encode())
    (tmp_path / "log.gz").write_bytes(gzip.compress(PLAIN.encode()))
    with zipfile.ZipFile(tmp_path / "archive.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("member", f"{PLAIN} " * 100)
    removed = masker.folder(tmp_path)
    assert sorted(path.name for path in removed) == ["archive.zip", "log.gz", "raw.bin"]
    assert (tmp_path / "log.txt").read_text() == "one\n***\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.bin", "log.txt"]


@pytest.mark.parametrize("damage", ["stored data", "flags"])
def test_a_secret_in_an_archive_of_which_another_member_is_damaged_is_found(damage: str) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("first", "ordinary text " * 50)
        archive.writestr("second", f"{PLAIN} " * 100)
        place = archive.getinfo("first").header_offset
    data = bytearray(stream.getvalue())
    if damage == "flags":
        # A member that claims to be encrypted, in its header and in the directory.
        data[place + 6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
    else:
        data[place + 40 : place + 50] = b"\xff" * 10
    assert Masker([PLAIN]).occurs_in(bytes(data))


def test_a_secret_in_a_file_that_was_cut_off_is_found() -> None:
    # Of the damaged end, a block can be lost.
    packed = gzip.compress(f"{PLAIN} ".encode() * 100 + os.urandom(20_000).hex().encode())
    assert Masker([PLAIN]).occurs_in(packed[:-2000])


def test_short_forms_do_not_garble_ordinary_text() -> None:
    assert MINIMUM_FORM >= 6
    assert Masker(["ab", "true"]).text("a table is true") == "a table is true"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("export WANDB_API_KEY=0123456789ab", "export WANDB_API_KEY=***"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("http://us:p/a#s@s@index.example/simple", "http://***@index.example/simple"),
        ("API_TOKEN=$OTHER EOS_TOKEN=<|endoftext|>", "API_TOKEN=$OTHER EOS_TOKEN=<|endoftext|>"),
        (
            "max_tokens=10000000 http://h:8080/a@b c://h:1/@x",
            "max_tokens=10000000 http://h:8080/a@b c://h:1/@x",
        ),
    ],
)
def test_credentials_that_nobody_knew_are_recognised_by_their_name(text: str, masked: str) -> None:
    assert Masker(()).text(text) == masked


def test_a_value_that_is_an_argument_of_the_command_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["npu-matrix", "lock", "verl-0-9-1-sim-8cf4dedcbb81"])
    environ = {"CELL": "verl-0-9-1-sim-8cf4dedcbb81", "MY_TOKEN": "verl-0-9-1", "HOME": "/nonexistent"}
    assert "8cf4dedcbb81" in Masker.of_command(environ).text("no cell verl-0-9-1-sim-8cf4dedcbb81")


def test_a_variable_that_is_no_valid_text_is_masked(tmp_path: Path) -> None:
    secret = os.fsdecode(b"canary-\xff-0123456789")
    masker = Masker.of_host({"BYTES": secret, "HOME": str(tmp_path)})
    assert "canary" not in masker.text(
        f"{secret} {secret.encode(errors='surrogateescape').decode(errors='replace')}"
    )
