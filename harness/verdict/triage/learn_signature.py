"""Makes a signature from a line of a log, for a failure that is not in the catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from harness.errors import InputError, Location
from harness.verdict.triage.catalogue import (
    LOCAL_NAME,
    SHORTEST_NEEDLE,
    Catalogue,
    Signature,
    load_catalogue,
)
from harness.verdict.triage.diagnosis import Finding
from harness.verdict.triage.stack_trace import NUMBERS, PATHS

VARIES = re.compile(rf"{PATHS.pattern}|{NUMBERS.pattern}|'[^']{{24,}}'")
HEADER = "# Failures seen here. `npu-matrix triage --learn` adds to this file; edit it freely.\nsignatures:\n"


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a failure by a person."""

    id: str
    cause: str
    remedy: str
    affects: str
    source: str


def generalise(text: str) -> tuple[str, str]:
    """A regular expression for a line with any numbers, addresses and folders; its longest constant part."""
    pieces: list[str] = []
    literals: list[str] = []
    end = 0
    for varying in VARIES.finditer(text):
        literals.append(text[end : varying.start()])
        pieces += [re.escape(literals[-1]), r"\S+"]
        end = varying.end()
    literals.append(text[end:])
    pieces.append(re.escape(literals[-1]))
    return "".join(pieces), max(literals, key=lambda literal: len(literal.encode()))


def learn(finding: Finding, description: Description, catalogue: Catalogue) -> Signature:
    """The entry for a catalogue file; InputError if the failure is known or its line is too unspecific."""
    if finding.signature:
        raise InputError(
            f"the catalogue already describes this failure as {finding.signature.id!r}",
            fix="no signature is needed: `npu-matrix triage` shows its cause",
        )
    if any(signature.id == description.id for signature in catalogue.signatures):
        raise InputError(f"a signature {description.id!r} already exists", fix="choose another --id")
    pattern, needle = generalise(finding.text)
    if len(needle.encode()) < SHORTEST_NEEDLE:
        raise InputError(
            f"the constant part of the line is too short for a signature: {finding.text!r}",
            fix=f"write the entry into {LOCAL_NAME} by hand, with a pattern for another line",
        )
    also = [signature.id for signature in catalogue.signatures if re.search(pattern, signature.example)]
    if also:
        raise InputError(
            f"a pattern made of this line would also match {', '.join(also)}",
            fix=f"write the entry into {LOCAL_NAME} by hand, with a narrower pattern",
        )
    try:
        return Signature(
            id=description.id,
            pattern=pattern,
            needles=(needle,),
            example=finding.text,
            cause=description.cause,
            remedy=description.remedy,
            affects=description.affects or "unknown",
            sources=(description.source,),
        )
    except ValidationError as error:
        fault = error.errors()[0]
        raise InputError(
            f"{fault['loc'][0]}: {fault['msg']}", fix="change the option and try again"
        ) from error


def append_entry(file: Path, entry: Signature) -> None:
    """Add an entry to a catalogue file, and keep its comments. An invalid file is not changed."""
    before = file.read_text(encoding="utf-8") if file.is_file() else HEADER
    text = yaml.safe_dump(
        [entry.model_dump(mode="json", exclude={"area", "role"})],
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )
    after = before.rstrip("\n") + "\n" + "".join(f"  {line}\n" for line in text.splitlines())
    candidate = file.with_name(f".{file.name}.new")
    candidate.write_text(after, encoding="utf-8")
    try:
        load_catalogue([candidate])
        candidate.replace(file)
    except InputError as error:
        raise InputError(
            "the entry cannot be added to this file",
            where=Location(file),
            why=error.problems[0].what,
            fix="make `signatures:` the last key of the file",
        ) from error
    finally:
        candidate.unlink(missing_ok=True)
