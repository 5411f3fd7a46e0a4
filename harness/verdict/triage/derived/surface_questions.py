"""What a failed use asks of a surface pack: over which releases of which package would the use work?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harness.compat.knowledge.definition_history import (
    UseTest,
    bases_in_other_packages,
    defines_all,
    definition_history,
    has_attribute,
    lacks_keyword,
    needs_none_of,
    takes_keyword,
    takes_positional,
    works_without,
)
from harness.compat.knowledge.surface_pack import InRelease, NameHistory, SurfacePack
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.logged_versions import LoggedVersion
from harness.verdict.triage.derived.package_names import package_of_file

#: Package -> its version, as the log shows it.
ShownVersions = Mapping[str, LoggedVersion]
#: More packages than this define a class or function of this name: nothing follows without the versions.
MOST_PACKAGES = 3
#: The files in which a package registers what it supports, by the beginning of their paths.
MODEL_TYPES = ("transformers", ("transformers/models/auto/configuration_auto.py",))
ARCHITECTURES = ("vllm", ("vllm/model_executor/models/registry.py", "vllm/model_executor/models/__init__.py"))


@dataclass(frozen=True, kw_only=True)
class SurfaceQuestion:
    """Over which releases of a package a use works. `history` is FOUND where it does.

    has: what these releases have, in words. caller: the package whose code expects it, "" if not known.
    is_certain: whether `history` is read from definitions alone; otherwise nothing is proven. is_import: the
    import of a name from a module that exists, so the name was there for whoever wrote the import.
    """

    history: NameHistory
    has: str
    caller: str = ""
    is_certain: bool = True
    is_import: bool = False

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
        case Expected.ATTRIBUTE if pack.package_of(use.owner):
            yield from _dotted(pack, use, user, shown)
        case Expected.OPERATOR | Expected.KERNEL if use.owner.partition("::")[0] == "npu":
            operator = use.owner.partition("::")[2].partition(".")[0] or use.names[0]
            yield from _operators(pack, operator, user)
        case Expected.ATTRIBUTE:
            yield from _defined(pack, use, has_attribute(use.names[0]), f"`{use.owner}` has {names}", shown)
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
        case Expected.MODEL_TYPE:
            yield from _mentioned(pack, MODEL_TYPES, use.names[0], f"transformers has the model type {names}")
        case Expected.REGISTERED if user in ("", "transformers"):
            yield from _mentioned(pack, MODEL_TYPES, use.names[0], f"transformers has the model type {names}")
        case Expected.ARCHITECTURE:
            yield from _mentioned(pack, ARCHITECTURES, use.names[0], f"vllm has the model class {names}")


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
    history = pack.history(package, dotted)
    question = SurfaceQuestion(history=history, has=has, caller=user, is_import=is_import)
    yield _by_words(pack, question, dotted)


def _operators(pack: SurfacePack, name: str, user: str) -> Iterator[SurfaceQuestion]:
    if pack.has("torch-npu"):
        history = pack.operator_history("torch-npu", name)
        yield SurfaceQuestion(history=history, has=f"the operator `{name}` exists", caller=user)


def _defined(
    pack: SurfacePack, use: FailedUse, works: UseTest, has: str, shown: ShownVersions
) -> Iterator[SurfaceQuestion]:
    """The packages that define the owner; if the log names any of them, only those."""
    owner = use.owner.partition(".")[0]
    user = package_of_file(use.user)
    names = ", ".join(f"`{name}`" for name in use.names)
    packages = [name for name in pack.packages if pack.modules_defining(name, owner)]
    named = [name for name in packages if name in shown or name in (user, package_of_file(use.defined_in))]
    if len(named or packages) > MOST_PACKAGES:
        return
    for package in named or packages:
        installed = shown[package].version.partition("+")[0] if package in shown else ""
        history = definition_history(pack, package, use.owner, works, failed_in=installed)
        caller = user if user != package else ""
        if not caller:
            # A method that overrides one of another package is called by that package.
            bases = bases_in_other_packages(pack, package, "", owner)
            caller = bases[0].package if bases else ""
        question = SurfaceQuestion(history=history, has=has, caller=caller)
        yield _by_words(pack, question, use.names[0]) if use.expected is Expected.ATTRIBUTE else question
        yield from _overridden(pack, use, package, names)


def _overridden(pack: SurfacePack, use: FailedUse, package: str, names: str) -> Iterator[SurfaceQuestion]:
    """What the base class in another package says, whose callers also call the class of `package`."""
    owner, _, method = use.owner.partition(".")
    for base in bases_in_other_packages(pack, package, "", owner):
        if use.expected is Expected.ATTRIBUTE:
            history = definition_history(pack, base.package, base.name, has_attribute(use.names[0]))
            yield SurfaceQuestion(history=history, has=f"`{base.name}` has {names}", caller=package)
        elif use.expected is Expected.KEYWORD and method:
            dotted = f"{base.name}.{method}"
            history = definition_history(pack, base.package, dotted, lacks_keyword(use.names[0]))
            yield SurfaceQuestion(history=history, has=f"`{dotted}` has no {names}", caller=package)


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


def _mentioned(
    pack: SurfacePack, place: tuple[str, tuple[str, ...]], name: str, has: str
) -> Iterator[SurfaceQuestion]:
    package, paths = place
    if pack.has(package):
        yield SurfaceQuestion(history=pack.mention_history(package, paths, name), has=has)
