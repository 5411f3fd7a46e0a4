"""The texts that verl's code compares settings with, read from all its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_WORD = r"[A-Za-z][\w-]*"
_QUOTED = re.compile(rf"[\"']({_WORD})[\"']")
_EQUAL = re.compile(rf"[!=]= *[\"'](?P<texts>{_WORD})[\"']")
_ONE_OF = re.compile(r"\bin *[\[({](?P<texts>[^\])}]{0,400})[\])}]")
_LITERAL = re.compile(r": *(?:Optional\[)?Literal\[(?P<texts>[^\]]{0,400})\]")
#: The name before an operator: `self.name`, `config["name"]`, `config.get("name", "default")`.
_NAME = re.compile(
    r"(?P<name>[A-Za-z]\w*)[\"']?(?:, *(?:None|[\"'][\w-]*[\"']))?[\])]{0,2}(?:\.lower\(\))?(?: +not)? *\Z"
)
_BEFORE = 80


@dataclass(kw_only=True)
class ComparedTexts:
    """places: where each name is compared with each text, as file and offset. words: all quoted words."""

    places: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)

    def of(self, name: str) -> frozenset[str]:
        """The texts that a name is compared with."""
        return frozenset(self.places.get(name, ()))


def compared_texts(sources: Iterable[tuple[str, str]]) -> ComparedTexts:
    """Read modules, given as path and source."""
    found = ComparedTexts()
    for path, source in sources:
        found.words.update(_QUOTED.findall(source))
        for pattern in (_EQUAL, _ONE_OF, _LITERAL):
            for match in pattern.finditer(source):
                named = _NAME.search(source[max(match.start() - _BEFORE, 0) : match.start()])
                if named is None:
                    continue
                texts = [match["texts"]] if pattern is _EQUAL else _QUOTED.findall(match["texts"])
                for text in texts:
                    found.places.setdefault(named["name"], {}).setdefault(text, (path, match.start()))
    return found
