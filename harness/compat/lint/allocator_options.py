"""Options of torch_npu's allocator of memory, which PYTORCH_NPU_ALLOC_CONF sets: `name:value,name:value`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.compat.lint.ruleset import OptionEntry
from harness.compat.lint.setting_changes import nearest_word
from harness.matrix.model.versions import Scheme, Version, parse_version

#: Between options; a list such as `roundup_power2_divisions:[256:1,512:2]` has commas of its own.
_COMMA = re.compile(r",(?![^\[\]]*\])")
_FORMS = {
    "truth": ("True or False", re.compile(r"True|False")),
    "integer": ("a whole number", re.compile(r"[0-9]+")),
    "number": ("a number", re.compile(r"[0-9]*\.?[0-9]+(?:e-?[0-9]+)?")),
    "text": ("a text or a list in brackets", re.compile(r"\[.*\]|[^:\[\]]+")),
}
#: torch_npu stops if expandable segments are set together with one of these.
_NOT_EXPANDABLE = ("max_split_size_mb", "garbage_collection_threshold")


def options_problem(text: str, options: Mapping[str, OptionEntry], torch_npu: str = "") -> str:
    """Why torch_npu refuses these options; "" if it takes them.

    options: what is known of each option. torch_npu: its version, "" if it is not known.
    """
    # Its reader leaves spaces out, so that a space does not end an option.
    given: dict[str, str] = {}
    for part in filter(None, _COMMA.split(text.replace(" ", ""))):
        name, colon, value = part.partition(":")
        problem = _problem(name, value if colon else None, options, torch_npu)
        if problem:
            return problem
        given[name] = value
    against = next((name for name in _NOT_EXPANDABLE if name in given), "")
    if against and given.get("expandable_segments") == "True":
        return f"{against} cannot be set together with expandable_segments:True"
    return ""


def differs_by_version(text: str, options: Mapping[str, OptionEntry]) -> bool:
    """Whether an option in a text was added by a version of torch_npu."""
    names = [part.partition(":")[0] for part in _COMMA.split(text.replace(" ", ""))]
    return any(options[name].since for name in names if name in options)


def _problem(name: str, value: str | None, options: Mapping[str, OptionEntry], torch_npu: str) -> str:
    option = options.get(name)
    if option is None:
        near = nearest_word(name, options)
        plain = re.match(r"\w*", name)
        if plain and plain[0] in options:
            return f"options are written {plain[0]}:value, with commas between them"
        return f"it has no option {name}" + (f", but {near}" if near else "")
    if torch_npu and _lacks(option, parse_version(Scheme.PEP440, torch_npu)):
        return f"torch_npu {torch_npu} has no option {name} yet"
    kind, pattern = _FORMS[option.form]
    if value is None or not pattern.fullmatch(value):
        return f"{name} is {kind}, written {name}:value"
    if option.form in ("integer", "number") and not option.low <= float(value) <= option.high:
        return f"{name} is {kind} from {option.low:g} to {option.high:g}"
    return ""


def _lacks(option: OptionEntry, version: Version) -> bool:
    """Whether a version is one of before an option was added to those for its release of torch."""
    firsts = [parse_version(Scheme.PEP440, one) for one in option.since]
    bases = {_base(str(one)): one for one in firsts}
    first = bases.get(_base(str(version)))
    if first is not None:
        return version.compare(first) < 0
    # Later releases of torch have it, too.
    return bool(firsts) and all(version.compare(one) < 0 for one in firsts)


def _base(version: str) -> str:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return found[0] if found else ""
