"""The generated pages in Chinese: titles, headings, labels, and the sentences of the code people meet.

Help texts, fields, rules and signatures stay in English, as the code has them; each page says so. The words
stand in docs/zh/reference.json.
"""

from __future__ import annotations

import json
from pathlib import Path

_WORDS = json.loads((Path(__file__).parent / "zh" / "reference.json").read_text(encoding="utf-8"))
#: What docs/reference.py itself says.
LABELS: dict[str, str] = _WORDS["labels"]
#: What the code says, where people meet it first: exit codes, settings, checks, verdicts, evidence.
SENTENCES: dict[str, str] = _WORDS["sentences"]


def say(text: str) -> str:
    """A label in Chinese; KeyError when it is not translated, which stops the build."""
    return LABELS[text]


def told(text: str) -> str:
    """A sentence of the code in Chinese where it is translated, otherwise as it is."""
    return SENTENCES.get(text, text)
