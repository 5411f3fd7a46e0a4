"""Translates headings, labels and sentences of the generated pages, from docs/zh/reference.json.

Help texts, fields, rules and signatures stay in English; each page says so.
"""

from __future__ import annotations

import json
from pathlib import Path

_WORDS = json.loads((Path(__file__).parent / "zh" / "reference.json").read_text(encoding="utf-8"))
#: Texts of docs/reference.py.
LABELS: dict[str, str] = _WORDS["labels"]
#: Texts of the code: exit codes, settings, checks, verdicts, evidence.
SENTENCES: dict[str, str] = _WORDS["sentences"]


def label(text: str) -> str:
    """A label in Chinese; KeyError if it is not translated, which stops the build."""
    return LABELS[text]


def sentence(text: str) -> str:
    """A sentence of the code in Chinese if it is translated, otherwise unchanged."""
    return SENTENCES.get(text, text)
