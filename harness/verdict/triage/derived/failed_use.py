"""Reads from an error what a program expected of a package: an argument, a name, a module, a symbol, a key.

The texts are those of CPython, the dynamic linker, torch, Hydra, OmegaConf, pydantic and transformers; they
do not depend on the packages that are involved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.verdict.triage.stack_trace import Frame

# A longer message is cut: what was expected stands at its beginning.
EXAMINED = 2000


class Expected(StrEnum):
    """What a package was expected to have or to accept."""

    KEYWORD = "keyword"
    ARGUMENT = "argument"
    POSITIONAL = "positional"
    ATTRIBUTE = "attribute"
    NAME = "name"
    MODULE = "module"
    SYMBOL = "symbol"
    LIBRARY_VERSION = "library version"
    LIBRARY = "library"
    OPERATOR = "operator"
    KERNEL = "kernel"
    ABSTRACT_METHOD = "abstract method"
    OVERRIDE = "override"
    OPTION = "option"
    CONFIG_KEY = "configuration key"
    CONFIG_NODE = "configuration node"
    MODEL_TYPE = "model type"
    ARCHITECTURE = "architecture"
    REGISTERED = "registered name"
    REQUIREMENT = "requirement"
    VERSION = "version"
    METADATA = "metadata"


@dataclass(frozen=True, kw_only=True)
class FailedUse:
    """What one package expected of another and did not get.

    expected: the kind. owner: the function, class, module, library or operator, as the message writes it,
    often without its module; an operator as `npu::name`. names: the arguments, attributes, symbols or keys;
    for `POSITIONAL` the numbers of arguments that were given; for `REQUIREMENT` (of an installer) and
    `VERSION` (of a running program) the requirement of `owner`, and what is installed as `defined_in`. user:
    the file of the code that expected it, "" if the log does not name it. defined_in: the file of the owner,
    if the message names it. is_shadowed: the message shows that a folder or a half imported module has the
    owner's name. is_read: the message says that the program itself reads the key, and not a command that sets
    it. stack: the frames of the traceback, outermost first.
    """

    expected: Expected
    owner: str
    names: tuple[str, ...]
    user: str = ""
    defined_in: str = ""
    is_shadowed: bool = False
    is_read: bool = False
    stack: tuple[Frame, ...] = ()


Q = "['\"`\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}]"
CALLED = r"(?P<owner>[A-Za-z_][\w.<>]{0,200})\(\)"
DOTTED = r"[A-Za-z_][\w.]{0,200}"
PACKAGE = r"[A-Za-z][\w.-]{0,60}"
VERSION = r"\d[\w+!]{0,20}(?:\.\w[\w+!]{0,20}){0,6}"
RANGE = r"(?:[=<>!~]=?=? ?v?\d[\w.+!*]{0,30},? ?){1,4}"
OPERATOR_NAME = r"[a-zA-Z_]\w{0,60}::\w{1,120}(?:\.\w{1,60})?"


@dataclass(frozen=True)
class _Form:
    expected: Expected
    pattern: re.Pattern[str]


def _form(expected: Expected, pattern: str) -> _Form:
    return _Form(expected, re.compile(pattern))


# The first form that matches counts. `owner` and `names` are as in FailedUse; `names` may be a list in words.
FORMS = (
    # pip and uv: `vllm 0.13.0 depends on torch==2.9.0`, `x 1 requires y<2, but you have y 2.1 ...`.
    _form(
        Expected.REQUIREMENT,
        r"^(?:ERROR: )?\s*(?P<owner>[A-Za-z][\w.-]{0,60} \d[\w.+!-]{0,40}) "
        r"(?:depends on|requires|has requirement) "
        r"(?P<names>[A-Za-z][\w.-]{0,60}[ =<>!~(][^\s;]{0,80}?)"
        r"(?:,? .{0,60}but you(?:'ll)? have (?P<file>[\w.-]{1,60} [\w.+!]{1,40}?))?"
        r"(?: which is incompatible)?\.?\s*$",
    ),
    # uv: `Because vllm-ascend==0.13.0 depends on torch-npu==2.8.0.post2 and you require ..., we conclude`.
    _form(
        Expected.REQUIREMENT,
        r"\bBecause (?P<owner>[A-Za-z][\w.-]{0,60}==\d[\w.+!-]{0,40}) depends on "
        r"(?P<names>[A-Za-z][\w.-]{0,60}[=<>!~][^\s;]{0,80}?),?(?:\s|$)",
    ),
    # Programs that compare the version of a package which they import: `tokenizers>=0.21,<0.22 is required
    # ..., but found tokenizers==0.20.3`, `Requires Flash-Attention version >=2.7.1 but got 2.8.3`, `Found an
    # incompatible version of torchao. Found version 0.12.0, but only versions above 0.16.0 are supported`.
    _form(
        Expected.VERSION,
        rf"(?P<names>{PACKAGE}{RANGE}) is required .{{0,100}}?but found "
        rf"(?P<file>{PACKAGE}[ =]{{1,3}}{VERSION})",
    ),
    _form(
        Expected.VERSION,
        rf"\b[Rr]equires? {Q}?(?P<names>{PACKAGE}{Q}?(?: version)? ?{RANGE})[,.]? but (?:got|found)"
        rf"(?: version)? (?P<file>{VERSION})",
    ),
    _form(
        Expected.VERSION,
        rf"incompatible version of (?P<names>{PACKAGE})\. Found version (?P<file>{VERSION}), "
        rf"but only versions (?P<range>(?:above|below|from) {VERSION})",
    ),
    _form(
        Expected.VERSION,
        rf"\b(?P<owner>{PACKAGE}) (?:needs|requires) (?P<names>{PACKAGE} v?{VERSION} or "
        rf"(?:less|greater|newer|later|higher|above))\. (?:Got|Found) (?P<file>{PACKAGE} {VERSION})",
    ),
    _form(
        Expected.VERSION,
        rf"(?P<names>{PACKAGE}) is installed with version (?P<file>{VERSION}),? "
        rf"which is (?:less|lower|older) than the minimum required version (?P<range>{VERSION})",
    ),
    # setuptools: `VersionConflict: (numpy 2.2.4 (/x), Requirement.parse('numpy<2.0.0'))`.
    _form(
        Expected.VERSION,
        rf"VersionConflict: \((?P<file>{PACKAGE} {VERSION}) \([^()]{{1,300}}\), "
        rf"Requirement\.parse\({Q}(?P<names>{PACKAGE}[^'\"]{{1,80}}){Q}\)"
        rf"(?:, \{{{Q}(?P<owner>{PACKAGE}){Q})?",
    ),
    _form(
        Expected.METADATA,
        rf"DistributionNotFound: The {Q}(?P<owner>{PACKAGE})[^'\"]{{0,80}}{Q} distribution was not found",
    ),
    _form(
        Expected.KEYWORD,
        rf"{CALLED} got (?:an )?unexpected keyword(?: argument)?:? {Q}?(?P<names>\w+)",
    ),
    _form(
        Expected.ARGUMENT,
        rf"{CALLED} missing (?:\d+ )?required (?:positional|keyword-only) arguments?: (?P<names>.{{1,300}})",
    ),
    _form(
        Expected.POSITIONAL,
        rf"{CALLED} takes (?:from \d+ to )?\d+ positional arguments? but (?P<names>\d+) "
        r"(?:positional arguments? .{1,60})?(?:was|were) given",
    ),
    _form(Expected.POSITIONAL, rf"{CALLED} got multiple values for argument {Q}(?P<names>\w+){Q}"),
    _form(
        Expected.OPERATOR,
        rf"{Q}_OpNamespace{Q} {Q}(?P<owner>\w+){Q} object has no attribute {Q}(?P<names>\w+){Q}",
    ),
    _form(
        Expected.ATTRIBUTE,
        rf"(?:module|type object) {Q}(?P<owner>{DOTTED}){Q} has no attribute {Q}(?P<names>\w+){Q}",
    ),
    _form(
        Expected.ATTRIBUTE,
        rf"{Q}(?P<owner>{DOTTED}){Q} object has no (?:attribute|field) {Q}(?P<names>[\w ]{{1,100}}){Q}",
    ),
    # pickle looks for a class in the module in which it was when the file was written.
    _form(
        Expected.ATTRIBUTE,
        rf"Can{Q}t get (?:local )?attribute {Q}(?P<names>\w+){Q} on <module {Q}(?P<owner>{DOTTED}){Q}"
        rf"(?: from {Q}(?P<file>[^{Q[1:-1]}]{{1,500}}){Q})?",
    ),
    # An enumeration says only the name that it does not have; msgspec only the argument.
    _form(Expected.ATTRIBUTE, r"^AttributeError: (?P<owner>)(?P<names>[A-Za-z_]\w{1,100})$"),
    _form(Expected.KEYWORD, rf"^TypeError: (?P<owner>)Unexpected keyword argument {Q}(?P<names>\w+){Q}"),
    _form(
        Expected.ATTRIBUTE, r"^(?:\w+: )?(?P<owner>[A-Z]\w{1,100}) has no attribute (?P<names>\w{1,100})\.?$"
    ),
    _form(
        Expected.NAME,
        rf"[Cc]annot import name {Q}(?P<names>\w+){Q}\s+from (?:partially initialized module )?"
        rf"{Q}?(?P<owner>{DOTTED}){Q}?"
        r"(?: \((?:most likely due to a circular import\) \()?(?P<file>[^()]{1,500})\))?",
    ),
    _form(Expected.METADATA, rf"No package metadata was found for {Q}?(?P<owner>{PACKAGE}){Q}?"),
    _form(Expected.MODULE, rf"No module named {Q}?(?P<owner>{DOTTED}){Q}?"),
    _form(
        Expected.ABSTRACT_METHOD,
        rf"Can{Q}t instantiate abstract class (?P<owner>\w+) (?:with|without an implementation for) "
        r"abstract methods? "
        r"(?P<names>.{1,300})",
    ),
    _form(
        Expected.LIBRARY_VERSION,
        rf"(?P<owner>[^\s:]{{1,300}}): version {Q}(?P<names>[A-Z]+_[\w.]+){Q} not found",
    ),
    _form(
        Expected.SYMBOL, r"(?P<owner>[^\s:]{1,300}\.so[\w.]{0,40}): undefined symbol: (?P<names>\w{1,500})"
    ),
    _form(Expected.SYMBOL, r"(?P<owner>)undefined symbol: (?P<names>\w{1,500})"),
    _form(Expected.LIBRARY, r"(?P<owner>[\w.+-]{1,200}\.so[\d.]{0,20}): cannot open shared object file"),
    _form(
        Expected.KERNEL,
        rf"Could not run {Q}(?P<owner>{OPERATOR_NAME}){Q} with arguments from the {Q}(?P<names>\w+){Q}",
    ),
    _form(
        Expected.KERNEL,
        rf"The operator {Q}(?P<owner>{OPERATOR_NAME}){Q} is not currently (?:implemented|supported) "
        r"(?:for|on) the (?P<names>\w+)",
    ),
    _form(Expected.KERNEL, rf"no fallback function is registered for schema (?P<owner>{OPERATOR_NAME})"),
    _form(
        Expected.KEYWORD,
        rf"Unknown keyword argument {Q}(?P<names>\w+){Q} for operator {Q}(?P<owner>{OPERATOR_NAME}){Q}",
    ),
    _form(
        Expected.ARGUMENT,
        rf"(?P<owner>{OPERATOR_NAME})\(\) is missing value for argument {Q}(?P<names>\w+){Q}",
    ),
    _form(
        Expected.OPERATOR,
        rf"(?P<owner>{OPERATOR_NAME})\(\) expected at most \d+ argument\(s\) but received (?P<names>\d+)",
    ),
    _form(
        Expected.OPERATOR,
        rf"(?P<owner>{OPERATOR_NAME})\(\) Expected a value of type .{{1,200}} for argument "
        rf"{Q}(?P<names>\w+){Q}",
    ),
    _form(
        Expected.OPERATOR,
        rf"(?:No such operator|[Oo]perator) {Q}?(?P<owner>{OPERATOR_NAME}){Q}?(?: does not exist)?",
    ),
    _form(Expected.CONFIG_KEY, rf"Could not override {Q}(?P<names>[\w.@/-]+){Q}"),
    _form(
        Expected.CONFIG_KEY, rf"Key {Q}(?P<names>[\w.]+){Q} (?:is )?not in (?:struct|{Q}(?P<owner>\w+){Q})"
    ),
    _form(
        Expected.CONFIG_NODE,
        r"\bnode (?P<owner>[\w.]+) is not a container and thus cannot contain (?P<names>[\w.]+)",
    ),
    _form(
        Expected.CONFIG_KEY, r"(?:Missing (?:key|mandatory value):?|Interpolation key) '?(?P<names>[\w.]+)'?"
    ),
    # vLLM's command line has an option for each field of EngineArgs.
    _form(
        Expected.OPTION,
        r"(?P<owner>(?:vllm(?: \w+)?|api_server\.py): error): unrecognized arguments: --(?P<names>[\w-]+)",
    ),
    _form(Expected.CONFIG_KEY, r"unrecognized arguments: --(?P<names>[\w-]+)"),
    _form(Expected.MODEL_TYPE, rf"has model type {Q}(?P<names>\w+){Q} but Transformers does not recognize"),
    _form(
        Expected.ARCHITECTURE,
        # "failed to be inspected" says that it is supported, and that its module cannot be imported.
        r"Model architectures? \['?(?P<names>\w+)'?\]? are not supported",
    ),
    _form(Expected.REGISTERED, r"^KeyError: '(?P<names>[a-z]\w{3,60})'\s*$"),
)
# pydantic writes the class, the field and the reason on three lines.
PYDANTIC = re.compile(
    r"\d+ validation errors? for (?P<owner>\w+)\s+(?P<names>[\w.]+)\s+"
    r"(?:Extra inputs are not permitted|Unexpected keyword argument|Object has no attribute)"
)
# The class in `engine_args = EngineArgs(`.
CONSTRUCTED = re.compile(r"(?:^|[\s=(,.])([A-Z]\w{1,100})\(")
NOT_IMPLEMENTED = "NotImplementedError"
#: OmegaConf's exceptions of a program that reads a key. Hydra reports one that a command sets without them.
KEY_READ = re.compile(r"Config(?:Attribute|Key)Error: Key ")
SHADOWED = re.compile(r"\(unknown location\)|partially initialized module|circular import|is not a package\b")
# What Python adds to a message: no form expects it.
SUGGESTION = re.compile(r"\.? Did you mean:? .{1,200}\?\s*$|; did you forget to .{1,200}\?\s*$")
#: Functions that look up attributes for others.
ATTRIBUTE_ACCESS = frozenset({"__getattr__", "__getattribute__"})
LISTED = re.compile(r"[A-Za-z_]\w*")
WORDS = frozenset({"and", "or"})


def failed_use_of(text: str, frames: Sequence[Frame] = ()) -> FailedUse | None:
    """What the message `text` says was expected; None if it says nothing of this kind.

    frames: the stack, whose innermost frame is the code that expected it.
    """
    examined = SUGGESTION.sub("", text[:EXAMINED])
    if examined.startswith(NOT_IMPLEMENTED):
        return _missing_override(frames)
    for form in FORMS:
        found = form.pattern.search(examined)
        if found:
            return _use(form.expected, found, frames)
    found = PYDANTIC.search(examined)
    return _use(Expected.CONFIG_KEY, found, frames) if found else None


def _use(expected: Expected, found: re.Match[str], frames: Sequence[Frame]) -> FailedUse:
    parts = found.groupdict()
    owner, written, file = parts.get("owner") or "", parts.get("names") or "", parts.get("file") or ""
    names: tuple[str, ...] = (written.strip(),) if written else ()
    if expected is Expected.VERSION:
        limit = parts.get("range") or ""
        names = (f"{written.strip(' ,')} {'>=' * limit[:1].isdigit()}{limit}".rstrip(),)
    if expected in {Expected.ARGUMENT, Expected.ABSTRACT_METHOD}:
        names = tuple(name for name in LISTED.findall(written) if name not in WORDS)
    if expected in {Expected.ATTRIBUTE, Expected.OPTION}:
        # Some trackers turn underscores into blanks, and options have dashes.
        names = tuple(re.sub("[ -]", "_", name) for name in names)
        owner = "EngineArgs" if owner.endswith("error") else owner
    callers = [frame for frame in frames if frame.function not in ATTRIBUTE_ACCESS]
    owner = _owner_in_code(expected, owner, names, callers)
    user = next((frame.file for frame in reversed(callers) if not frame.file.startswith("<")), "")
    return FailedUse(
        expected=expected,
        owner=owner.replace("<locals>.", ""),
        names=names,
        user=user.replace("\\", "/"),
        defined_in="" if file == "unknown location" else file.replace("\\", "/"),
        is_shadowed=bool(SHADOWED.search(found.string)),
        is_read=bool(KEY_READ.search(found.string)),
        stack=tuple(frames),
    )


def _missing_override(frames: Sequence[Frame]) -> FailedUse | None:
    """A base class raises where a derived class should have its own method."""
    last = frames[-1] if frames else None
    if last is None or not last.function.isidentifier():
        return None
    return FailedUse(
        expected=Expected.OVERRIDE,
        owner="",
        names=(last.function,),
        user=last.file,
        stack=tuple(frames),
    )


def _owner_in_code(expected: Expected, owner: str, names: tuple[str, ...], frames: Sequence[Frame]) -> str:
    """The owner, from the line of code in the innermost frame where the message leaves out the class.

    Up to Python 3.9, `__init__() got ...` does not name it.
    """
    code = frames[-1].code if frames else ""
    if expected is Expected.KEYWORD and owner in ("", "__init__"):
        called = CONSTRUCTED.findall(code)
        return f"{called[-1]}.__init__" if called else owner
    if expected is Expected.ATTRIBUTE and not owner and names:
        found = re.search(rf"([A-Za-z_]\w{{0,100}})\.{re.escape(names[0])}\b", code)
        return found[1] if found else owner
    return owner
