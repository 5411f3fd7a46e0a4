"""What a failed use asks of a surface pack: over which releases of which package would the use work?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.compat.knowledge.definition_history import (
    BaseInOtherPackage,
    UseTest,
    bases_in_other_packages,
    defines_all,
    definition_history,
    every_object_has,
    has_attribute,
    is_class,
    lacks_keyword,
    lacks_positional,
    needs_none_of,
    sets_attribute,
    takes_keyword,
    takes_positional,
    works_without,
)
from harness.compat.knowledge.surface_pack import InRelease, NameHistory, SurfacePack
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.logged_versions import ShownVersions
from harness.verdict.triage.derived.meant_packages import is_imported_from, is_named, meant_packages
from harness.verdict.triage.derived.package_names import INSTALLED, package_of_file
from harness.verdict.triage.derived.stack_releases import path_in_package

#: A name that a build makes is in at most one of so many releases' sources.
FEW_RELEASES = 4
#: A shorter word occurs in any package for other reasons.
LONG_NAME = 8
#: More packages than this define a class or function of this name: nothing follows without the versions.
MOST_PACKAGES = 3
#: It calls `forward` with whatever it gets.
TORCH_MODULE = BaseInOtherPackage(package="torch", name="Module")
#: The files in which a package registers what it supports, by the beginning of their paths.
MODEL_TYPES = (
    "transformers",
    tuple(f"transformers/models/auto/{name}.py" for name in ("configuration_auto", "auto_mappings")),
)
#: What is refused by the signature of a function.
REFUSED = frozenset({Expected.KEYWORD, Expected.ARGUMENT, Expected.POSITIONAL})
ARCHITECTURES = ("vllm", ("vllm/model_executor/models/registry.py", "vllm/model_executor/models/__init__.py"))


@dataclass(frozen=True, kw_only=True)
class SurfaceQuestion:
    """Over which releases of a package a use works. `history` is FOUND where it does.

    has: what these releases have, in words. caller: the package whose code expects it, "" if not known.
    is_certain: whether `history` is read from definitions alone; otherwise nothing is proven. is_weak: the
    use may work in releases that do not name it, so without a version nothing is likely. is_sole: no other
    package can be meant. is_import: the import of a name from a module that exists, so the name was there
    for whoever wrote the import. is_imported: whatever is installed of this package has refused it: the
    calling file imports it from there, or the message names the installed file that lacks it. is_stated: the
    message says that a module which Python found lacks it, or (is_call) that what was called refuses it, or
    (is_object) that an object lacks what each object of the class has in these releases.
    is_built: releases import it from themselves and have no source of it. is_mention: the name only occurs
    as a word. with_class: the releases that have the class of the object, if the message names it.
    """

    history: NameHistory
    has: str
    caller: str = ""
    is_certain: bool = True
    is_weak: bool = False
    is_sole: bool = False
    is_import: bool = False
    is_imported: bool = False
    is_stated: bool = False
    is_call: bool = False
    is_object: bool = False
    is_built: bool = False
    is_mention: bool = False
    with_class: frozenset[str] = frozenset()

    @property
    def package(self) -> str:
        """The package that has it or not."""
        return self.history.package


def questions(pack: SurfacePack, use: FailedUse, shown: ShownVersions) -> Iterator[SurfaceQuestion]:
    """The questions that a failed use asks, those that tell most first. shown: the versions in the log."""
    names = ", ".join(f"`{name}`" for name in use.names)
    user = package_of_file(use.user)
    match use.expected:
        case Expected.NAME | Expected.MODULE:
            yield from _dotted(pack, use, user, shown)
        case Expected.ATTRIBUTE if not use.owner:
            yield from _of_one_package(pack, use.names[0], user)
        case Expected.ATTRIBUTE if pack.package_of(use.owner):
            yield from _dotted(pack, use, user, shown)
        case Expected.OPERATOR | Expected.KERNEL if use.owner.partition("::")[0] == "npu":
            operator = use.owner.partition("::")[2].partition(".")[0] or use.names[0]
            yield from _operators(pack, operator, user)
        case Expected.ATTRIBUTE:
            yield from _defined(pack, use, has_attribute(use.names[0]), f"`{use.owner}` has {names}", shown)
        case Expected.OPTION:
            yield from _option(pack, use)
        case Expected.KEYWORD | Expected.ARGUMENT if "::" in use.owner:
            yield from _operator_arguments(pack, use, user)
        case Expected.KEYWORD:
            yield from _defined(pack, use, takes_keyword(use.names[0]), f"`{use.owner}` takes {names}", shown)
        case Expected.ARGUMENT:
            has = f"`{use.owner}` can be called without {names}"
            yield from _defined(pack, use, works_without(use.names), has, shown)
            # In a commit between two releases an argument can be needed that a release has a default for.
            has = f"`{use.owner}` has no {names}"
            for question in _defined(pack, use, lacks_keyword(use.names[0]), has, shown):
                yield replace(question, is_certain=False)
        case Expected.POSITIONAL if use.names[0].isdigit():
            has = f"`{use.owner}` takes {use.names[0]} positional arguments"
            yield from _defined(pack, use, takes_positional(int(use.names[0])), has, shown)
        case Expected.ABSTRACT_METHOD:
            yield from _abstract(pack, use, names)
        case Expected.OVERRIDE if user and not use.names[0].startswith("__"):
            yield from _override(pack, use, user, shown)
        case Expected.CONFIG_KEY if use.owner and use.names:
            yield from _defined(pack, use, takes_keyword(use.names[0]), f"`{use.owner}` takes {names}", shown)
        case Expected.MODEL_TYPE | Expected.REGISTERED if use.expected is Expected.MODEL_TYPE or _loads_model(
            use
        ):
            has = f"transformers has the model type {names}"
            for question in _mentioned(pack, MODEL_TYPES, use.names[0], has):
                # A key alone may be one of any table.
                is_stated = use.expected is Expected.MODEL_TYPE
                yield replace(question, is_stated=is_stated, is_weak=not (is_stated or use.stack))
        case Expected.ARCHITECTURE:
            has = f"vllm has the model class {names}"
            for question in _mentioned(pack, ARCHITECTURES, use.names[0], has):
                yield replace(question, is_stated=True)


def _dotted(pack: SurfacePack, use: FailedUse, user: str, shown: ShownVersions) -> Iterator[SurfaceQuestion]:
    packages = pack.packages_of(use.owner)
    if not packages or "." not in ".".join((use.owner, *use.names)):
        return
    package = next((name for name in packages if name in shown), packages[0])
    dotted = ".".join((use.owner, *use.names[:1]))
    has = f"the module `{dotted}` exists" if use.expected is Expected.MODULE else f"`{dotted}` exists"
    if package == "torch-npu" and use.owner == "torch_npu" and use.names:
        # torch_npu makes every operator an attribute of its module when it is imported.
        operators = pack.operator_history(package, use.names[0])
        if operators.since:
            yield SurfaceQuestion(history=operators, has=has, caller=user)
            return
    # A module that is generated when a package is built is in no source archive.
    is_import = use.expected is Expected.NAME and bool(pack.history(package, use.owner).since)
    is_sole = len(packages) == 1 or package in shown
    stated = pack.history(package, dotted)
    history = _without_built(pack, stated)
    question = SurfaceQuestion(
        history=history,
        has=has,
        caller=user,
        is_sole=is_sole,
        is_import=is_import,
        is_imported=is_import and not use.is_shadowed and _is_file_of(pack, package, use),
        # Python says of a missing package only its first name.
        is_stated=is_sole and not use.is_shadowed and (use.expected is not Expected.MODULE or "." in dotted),
        is_built=history is not stated,
    )
    yield _by_words(pack, question, dotted)
    if use.expected is Expected.ATTRIBUTE and not question.history.since and _is_distinctive(use.names[0]):
        # What a compiled module has is named in no stub of the pack, only in the texts of others that use it.
        words = pack.word_history(package, use.names[0])
        yield replace(
            question, history=words, has=f"`{dotted}` is mentioned", is_certain=False, is_mention=True
        )
    if use.expected is not Expected.MODULE:
        stated = pack.stated_history(package, dotted)
        yield replace(question, history=stated, is_certain=False, is_sole=False, is_import=False)


def _without_built(pack: SurfacePack, history: NameHistory) -> NameHistory:
    """The history, where a release that imports the name from itself without a definition tells nothing.

    A build makes such names: compiled modules, and files that it writes. Their sources are in few releases.
    """
    states = [state for _version, state in history.releases]
    if states.count(InRelease.FOUND) * FEW_RELEASES >= states.count(InRelease.MISSING):
        return history
    holder, _, name = (part.encode() for part in history.name.rpartition("."))
    own = re.compile(
        rb"\bfrom\s+%s\s+import\s+(?:\([^)]*|[^\n]*)\b%s\b|\bimport\s+%s\.%s\b"
        % (re.escape(holder), re.escape(name), re.escape(holder), re.escape(name))
    )
    releases = []
    for (version, state), (_version, surface) in zip(
        history.releases, pack.surfaces(history.package), strict=True
    ):
        is_missing = surface is not None and state is InRelease.MISSING
        files = map(surface.read, surface.containing(name)) if surface and is_missing else ()
        releases.append((version, InRelease.UNKNOWN if any(map(own.search, files)) else state))
    built = replace(history, releases=tuple(releases))
    return history if built == history else built


def _is_file_of(pack: SurfacePack, package: str, use: FailedUse) -> bool:
    """Whether the message names a file of the installed package, not one of a checkout."""
    return bool(INSTALLED.search(use.defined_in) and path_in_package(use.defined_in, pack.paths(package)))


def _is_distinctive(name: str) -> bool:
    """Whether a word hardly occurs in a package with another meaning."""
    return len(name) >= LONG_NAME and "_" in name.strip("_")


def _of_one_package(pack: SurfacePack, name: str, user: str) -> Iterator[SurfaceQuestion]:
    """A name without its class, as enumerations report it: asked if only one package ever had this word."""
    if not _is_distinctive(name):
        return
    histories = (pack.word_history(package, name) for package in pack.packages)
    having = [one for one in histories if one.since]
    if len(having) == 1:
        caller = user if user != having[0].package else ""
        has = f"`{name}` is mentioned"
        yield SurfaceQuestion(
            history=having[0], has=has, caller=caller, is_certain=False, is_sole=True, is_mention=True
        )


def _option(pack: SurfacePack, use: FailedUse) -> Iterator[SurfaceQuestion]:
    """An option of vllm's command line: a field of EngineArgs, or one that the server defines elsewhere."""
    name = use.names[0]
    history = definition_history(pack, "vllm", use.owner, has_attribute(name))
    if not history.since and pack.word_history("vllm", name).since:
        return
    option = name.replace("_", "-")
    yield SurfaceQuestion(history=history, has=f"`{use.owner}` has the option `--{option}`", is_sole=True)


def _operators(pack: SurfacePack, name: str, user: str) -> Iterator[SurfaceQuestion]:
    if pack.has("torch-npu"):
        history = pack.operator_history("torch-npu", name)
        yield SurfaceQuestion(history=history, has=f"the operator `{name}` exists", caller=user)


def _operator_arguments(pack: SurfacePack, use: FailedUse, user: str) -> Iterator[SurfaceQuestion]:
    """An operator was called with an argument that it does not have, or without one that it needs."""
    namespace, _, name = use.owner.partition("::")
    if namespace != "npu" or not pack.has("torch-npu"):
        return
    operator = name.partition(".")[0]
    history = pack.argument_history("torch-npu", operator, use.names[0])
    has = f"the operator `{operator}` takes `{use.names[0]}`"
    if use.expected is Expected.ARGUMENT:
        opposite = {InRelease.FOUND: InRelease.MISSING, InRelease.MISSING: InRelease.FOUND}
        releases = tuple((one, opposite.get(state, state)) for one, state in history.releases)
        history = replace(history, releases=releases)
        has = f"the operator `{operator}` has no `{use.names[0]}`"
    yield SurfaceQuestion(history=history, has=has, caller=user)


def _defined(
    pack: SurfacePack, use: FailedUse, works: UseTest, has: str, shown: ShownVersions
) -> Iterator[SurfaceQuestion]:
    """The packages that define the owner; if the log names any of them, only those."""
    owner = use.owner.partition(".")[0]
    user = package_of_file(use.user)
    packages = meant_packages(pack, use, shown)
    if len(packages) > MOST_PACKAGES:
        return
    is_sole = len(packages) == 1
    for package in packages:
        installed = shown[package].version.partition("+")[0] if package in shown else ""
        bases = [base for base in bases_in_other_packages(pack, package, "", owner) if base != TORCH_MODULE]
        # A method that overrides one of another package is called by that package.
        caller = user if user not in ("", package) else bases[0].package if bases else ""
        history = definition_history(pack, package, use.owner, works, failed_in=installed)
        question = SurfaceQuestion(
            history=history,
            has=has,
            caller=caller,
            is_sole=is_sole,
            is_imported=use.expected in REFUSED and is_imported_from(pack, use, package, shown),
            is_stated=use.expected in REFUSED and is_sole,
            is_call=use.expected in REFUSED,
        )
        if use.expected is Expected.ATTRIBUTE:
            question = _by_words(pack, question, use.names[0])
            # Objects may get it at run time, in any release in which the class does not tell.
            # If nothing in the log names the package, it may also be another class of this name.
            is_weak = not (use.stack or is_named(package, use, shown))
            is_weak |= any(state is InRelease.UNKNOWN for _version, state in question.history.releases)
            # Where the log shows the version, it alone decides.
            is_asked = is_sole and package not in shown
            stated = is_asked and _is_in_every_object(pack, question, use)
            # Then the message alone rules out the releases that have it, however the others were judged.
            certain = question.is_certain or stated
            question = replace(
                question,
                is_weak=is_weak,
                is_stated=stated,
                is_object=stated,
                is_certain=certain,
                with_class=_with_class(pack, package, owner) if is_asked else frozenset(),
            )
        yield question
        for base in bases if history.in_release(installed) is not InRelease.FOUND else ():
            yield from _of_base(pack, use, package, base)
        if use.expected is Expected.ATTRIBUTE:
            explicit = definition_history(pack, package, use.owner, sets_attribute(use.names[0]))
            yield replace(question, history=explicit, is_certain=False, is_weak=True, is_sole=False)
            if is_sole and len(use.names[0]) >= LONG_NAME:
                words = pack.word_history(package, use.names[0])
                mentioned = f"`{use.names[0]}` is mentioned"
                yield SurfaceQuestion(
                    history=words,
                    has=mentioned,
                    caller=caller,
                    is_certain=False,
                    is_weak=True,
                    is_mention=True,
                    with_class=question.with_class,
                )


def _with_class(pack: SurfacePack, package: str, name: str) -> frozenset[str]:
    """The releases of a package that define a class."""
    history = definition_history(pack, package, name, is_class)
    return frozenset(one for one, state in history.releases if state is InRelease.FOUND)


def _is_in_every_object(pack: SurfacePack, question: SurfaceQuestion, use: FailedUse) -> bool:
    """Whether in the releases whose class has an attribute, each of its objects has it."""
    having = [one for one, state in question.history.releases if state is InRelease.FOUND]
    if not having:
        return False
    history = definition_history(pack, question.package, use.owner, every_object_has(use.names[0]))
    states = dict(history.releases)
    return all(states[one] is InRelease.FOUND for one in having)


def _of_base(
    pack: SurfacePack, use: FailedUse, package: str, base: BaseInOtherPackage
) -> Iterator[SurfaceQuestion]:
    """What the base class in another package says, whose callers also call the class of `package`."""
    method = use.owner.partition(".")[2]
    dotted = f"{base.name}.{method}" if method else base.name
    name, names = use.names[0], ", ".join(f"`{one}`" for one in use.names)
    tests: dict[Expected, tuple[UseTest, str]] = {
        Expected.ATTRIBUTE: (has_attribute(name), f"`{dotted}` has {names}"),
        Expected.KEYWORD: (lacks_keyword(name), f"`{dotted}` has no {names}"),
        Expected.ARGUMENT: (takes_keyword(name), f"`{dotted}` takes {names}"),
    }
    if name.isdigit():
        fewer = f"`{dotted}` takes fewer than {name} positional arguments"
        tests[Expected.POSITIONAL] = (lacks_positional(int(name)), fewer)
    if use.expected in tests and (method or use.expected is Expected.ATTRIBUTE):
        works, has = tests[use.expected]
        history = definition_history(pack, base.package, dotted, works)
        yield SurfaceQuestion(history=history, has=has, caller=package)


def _by_words(pack: SurfacePack, question: SurfaceQuestion, name: str) -> SurfaceQuestion:
    """The question, where a release that does not contain the word anywhere counts as one without the name.

    That decides for names which a package may define at run time, such as those of lazily loaded modules.
    """
    states = dict(question.history.releases)
    if InRelease.FOUND not in states.values() or InRelease.UNKNOWN not in states.values():
        return question
    words = dict(pack.word_history(question.package, name.rpartition(".")[2]).releases)
    absent = {
        version
        for version, state in states.items()
        if state is InRelease.UNKNOWN and words.get(version) is InRelease.MISSING
    }
    if not absent:
        return question
    releases = tuple((one, InRelease.MISSING if one in absent else state) for one, state in states.items())
    return replace(question, history=replace(question.history, releases=releases), is_certain=False)


def _abstract(pack: SurfacePack, use: FailedUse, names: str) -> Iterator[SurfaceQuestion]:
    """A class lacks methods: its package may define them in other releases, its base may not need them."""
    for package in (name for name in pack.packages if pack.modules_defining(name, use.owner)):
        bases = bases_in_other_packages(pack, package, "", use.owner)
        yield SurfaceQuestion(
            history=definition_history(pack, package, use.owner, defines_all(use.names)),
            has=f"`{use.owner}` defines {names}",
            caller=bases[0].package if bases else "",
        )
        for base in bases:
            yield SurfaceQuestion(
                history=definition_history(pack, base.package, base.name, needs_none_of(use.names)),
                has=f"`{base.name}` does not require {names}",
                caller=package,
            )


def _override(
    pack: SurfacePack, use: FailedUse, user: str, shown: ShownVersions
) -> Iterator[SurfaceQuestion]:
    """The packages in the log, beside that of the base class, which define the method in some releases."""
    name = use.names[0]
    in_stack = {package_of_file(frame.file) for frame in use.stack}
    for package in (one for one in pack.packages if one != user and (one in shown or one in in_stack)):
        history = pack.method_history(package, name)
        has = f"a class has its own `{name}`"
        yield SurfaceQuestion(history=history, has=has, caller=user, is_certain=False)


def _loads_model(use: FailedUse) -> bool:
    """Whether transformers looked up a name. Its frames may be cut; without any only the name is known."""
    if not use.stack or package_of_file(use.user) == "transformers":
        return True
    return ".from_pretrained(" in use.stack[-1].code


def _mentioned(
    pack: SurfacePack, place: tuple[str, tuple[str, ...]], name: str, has: str
) -> Iterator[SurfaceQuestion]:
    package, paths = place
    if pack.has(package):
        yield SurfaceQuestion(history=pack.mention_history(package, paths, name), has=has)
