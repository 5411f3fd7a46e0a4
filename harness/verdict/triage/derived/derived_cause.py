"""Computes the cause of a failed use from the versions in the log, published rules and names of symbols.

Three degrees. PROVEN: the log shows the versions, and a published rule excludes the combination. LIKELY: the
versions are not in the log. SYMPTOM: only what failed is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.compat.knowledge.pack_at_hand import PackAtHand, shipped_pack
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.conditional_attributes import conditional_attribute
from harness.verdict.triage.derived.failed_use import Expected, FailedUse, failed_use_of
from harness.verdict.triage.derived.installed_files import (
    damaged_installation,
    overwritten_folder,
    unregistered_operator,
)
from harness.verdict.triage.derived.logged_versions import LoggedVersion
from harness.verdict.triage.derived.meant_packages import meant_packages
from harness.verdict.triage.derived.message_causes import told_by_message
from harness.verdict.triage.derived.package_names import (
    CHECKED_OUT,
    INSTALLED,
    OPERATOR_NAMESPACES,
    demangled,
    giver_of,
    package_of_file,
    package_of_import,
    package_of_library,
)
from harness.verdict.triage.derived.published_pairs import PublishedPairs, shipped_pairs
from harness.verdict.triage.derived.raised_causes import RaisedCauses, bare_assertion, may_be_raised
from harness.verdict.triage.derived.requirement_causes import RequirementCauses
from harness.verdict.triage.derived.surface_causes import SurfaceCauses
from harness.verdict.triage.derived.surface_questions import REFUSED
from harness.verdict.triage.stack_trace import Frame

#: Looking up a use takes up to seconds.
MOST_USES = 10
#: Without a cause these say nothing about packages.
NO_SYMPTOM = frozenset({Expected.CONFIG_KEY, Expected.LIBRARY, Expected.REGISTERED, Expected.OVERRIDE})
#: What no release of a Python package tells.
NOT_IN_SURFACES = frozenset({Expected.SYMBOL, Expected.LIBRARY_VERSION, Expected.LIBRARY})


@dataclass(frozen=True, kw_only=True)
class CauseFinder:
    """Derives causes from published tables, a surface pack and the versions that a log shows.

    matrix_pairs: None for those of the shipped matrix.
    """

    versions: Mapping[str, LoggedVersion] = field(default_factory=dict)
    matrix_pairs: PublishedPairs | None = None
    surfaces: PackAtHand = field(default_factory=shipped_pack)
    _known: dict[FailedUse, DerivedCause | None] = field(default_factory=dict, repr=False)
    _uses: dict[tuple[str, tuple[Frame, ...]], FailedUse | None] = field(default_factory=dict, repr=False)

    _raised: dict[tuple[str, tuple[Frame, ...]], tuple[str, DerivedCause] | None] = field(
        default_factory=dict, repr=False
    )

    @property
    def pairs(self) -> PublishedPairs:
        """`matrix_pairs`, or those of the shipped matrix, which is read when it is first needed."""
        return self.matrix_pairs or shipped_pairs()

    def use(self, text: str, frames: tuple[Frame, ...]) -> FailedUse | None:
        """What a message says was expected. Many ranks report the same."""
        if (text, frames) not in self._uses:
            self._uses[text, frames] = failed_use_of(text, frames)
        return self._uses[text, frames]

    def raised(self, text: str, frames: tuple[Frame, ...]) -> tuple[str, DerivedCause] | None:
        """The function that raises an exception with this text, and what it tells. Limited as `cause` is."""
        if (text, frames) not in self._raised:
            asks = len(self._raised) < MOST_USES and may_be_raised(text)
            pack = self.surfaces.pack if asks else None
            asked = RaisedCauses(pack=pack, versions=self.versions) if pack else None
            found = asked.cause(text, frames) if asked else None
            self._raised[text, frames] = found or bare_assertion(text, frames)
        return self._raised[text, frames]

    def look_up(self, text: str, frames: tuple[Frame, ...]) -> None:
        """Look up a failure before others."""
        use = self.use(text, frames)
        if use:
            self.cause(use)

    def cause(self, use: FailedUse, *, only_known: bool = False) -> DerivedCause | None:
        """The most certain cause of a failed use; None if its packages are not known.

        Of a log with very many different failures only the first ones are looked up. only_known: give it only
        if it was looked up before.
        """
        if use not in self._known and not only_known:
            self.surfaces.trim()
            self._known[use] = self._cause(use) if len(self._known) < MOST_USES else None
        return self._known.get(use)

    def _cause(self, use: FailedUse) -> DerivedCause | None:
        if use.expected is Expected.REQUIREMENT:
            return self._stated(use)
        told = told_by_message(use)
        if told:
            return told
        by_pack = (*self._by_surfaces(use), *self._by_requirements(use))
        found = [
            _source_folder(use),
            *by_pack,
            self._by_rules(use),
            self._by_symbol(use),
            *self._by_files(use),
        ]
        found.append(self._symptom(use))
        order = list(Degree)
        return min((one for one in found if one), key=lambda one: order.index(one.degree), default=None)

    def _by_files(self, use: FailedUse) -> Iterator[DerivedCause | None]:
        surfaces = self._surface_causes(use)
        if surfaces is None:
            return
        yield overwritten_folder(surfaces.pack, use)
        yield conditional_attribute(surfaces.pack, use, self.versions)
        yield unregistered_operator(surfaces.pack, use, self.versions)
        damaged = damaged_installation(use, self.versions)
        if damaged and surfaces.works_as_installed(use):
            yield damaged

    def _by_surfaces(self, use: FailedUse) -> Iterator[DerivedCause]:
        surfaces = self._surface_causes(use)
        if surfaces:
            yield from surfaces.causes(use)

    def _surface_causes(self, use: FailedUse) -> SurfaceCauses | None:
        """What the releases of the packages say. Without a pack, or with a damaged one: nothing."""
        if use.expected in NOT_IN_SURFACES or not self.surfaces.pack:
            return None
        return SurfaceCauses(pack=self.surfaces.pack, versions=self.versions, pairs=self.pairs)

    def _by_requirements(self, use: FailedUse) -> Iterator[DerivedCause]:
        """What the packages of a use require of each other. An operator's package requires its torch."""
        if not self.surfaces.pack:
            return
        asked = RequirementCauses(pack=self.surfaces.pack, versions=self.versions, pairs=self.pairs)
        involved = tuple(_involved(use))
        needed = (*involved, "torch") if use.expected is Expected.OPERATOR else involved
        for requirer in involved:
            yield from asked.causes(requirer, needed)

    def _stated(self, use: FailedUse) -> DerivedCause:
        """The installer names both sides: what requires what, and what is installed instead."""
        wanted, owner = use.names[0], use.owner.replace("==", " ")
        requirer = owner.partition(" ")[0]
        package = re.split(r"[ =<>!~(]", wanted)[0]
        instead = f"{use.defined_in} is installed" if use.defined_in else "another requirement excludes it"
        return DerivedCause(
            degree=Degree.PROVEN,
            sentence=f"{owner} requires {wanted}, and {instead}",
            proof=("message of the installer",),
            packages=(package, requirer),
            remedy=(
                f"install versions of {requirer} and {package} that were published for each other, "
                f"or {requirer} with --no-deps if its documentation says so"
            ),
            stacks=self._stacks(),
        )

    def _by_rules(self, use: FailedUse) -> DerivedCause | None:
        """The rule of the matrix that two of the packages of a use break with the versions in the log."""
        involved = _involved(use)
        shown = {name: one.version for name, one in self.versions.items() if name in involved}
        broken = self.pairs.violations(shown) if len(shown) > 1 else ()
        if not broken:
            return None
        first = broken[0]
        surfaces = self._surface_causes(use)
        # What the installed release has is missing for another reason than its version.
        degree = Degree.LIKELY if surfaces and surfaces.works_as_installed(use) else Degree.PROVEN
        return DerivedCause(
            degree=degree,
            sentence=f"{first.what}: {first.reason}",
            proof=tuple(f"{rule.what} ({rule.source})" for rule in broken),
            packages=tuple(shown),
            remedy="install these packages in versions that were published for each other",
            stacks=self._stacks(),
        )

    def _by_symbol(self, use: FailedUse) -> DerivedCause | None:
        """The dynamic linker says that nothing which is loaded defines what a library needs."""
        if use.expected not in {Expected.SYMBOL, Expected.LIBRARY_VERSION} or not use.names:
            return None
        giver = giver_of(use.names[0])
        if not giver:
            return None
        path = use.owner if use.expected is Expected.SYMBOL else use.user or use.owner
        library = path.rpartition("/")[2] or "a library"
        package = package_of_library(path)
        of = f" of {package}" if package and package != giver else ""
        name = demangled(use.names[0])
        is_other = bool(package) and package != giver
        return DerivedCause(
            degree=Degree.PROVEN if is_other else Degree.SYMPTOM,
            sentence=(
                f"{library}{of} needs `{name}` of {giver}, and no {giver} that is loaded defines it: the "
                f"library was built for another version or build of {giver}, or {giver} is not loaded first"
            ),
            proof=(f"message of the dynamic linker; `{use.names[0]}` is `{name}`, a name of {giver}",),
            packages=tuple(filter(None, (giver, package))),
            is_open=is_other,
            remedy=(
                f"install the {giver} that {package or library} was built for, or build {package or library} "
                "again in this environment"
            ),
            stacks=self._stacks(),
        )

    def _symptom(self, use: FailedUse) -> DerivedCause | None:
        user, packages = package_of_file(use.user), tuple(_involved(use))
        if not packages or use.expected in NO_SYMPTOM or not (use.owner or use.names):
            return None
        subject = _subject(use.owner, use)
        by = f", which {user} expects" if user else ""
        sentence = f"not in the installed {packages[0]}{by}: {subject}"
        if user == packages[0]:
            sentence = f"not in this environment{by}: {subject}"
        place = self._refusing_place(use, user)
        if place:
            # What replaces functions of another package, as transfer_to_npu does, is often not in the stack.
            package, file = place
            packages = (*packages, package)
            of = f"the function is that of {package} ({file}), which refuses it"
            sentence = f"{user} expects that {subject}; {of}"
        return DerivedCause(
            degree=Degree.SYMPTOM,
            sentence=sentence,
            proof=(),
            packages=packages,
            remedy=f"compare the versions of {' and '.join(packages)} with those of a stack that works",
            stacks=self._stacks(),
        )

    def _refusing_place(self, use: FailedUse, user: str) -> tuple[str, str] | None:
        """The other package, and its file, with the only function of this name that was called."""
        pack = self.surfaces.pack
        if pack is None or use.expected not in REFUSED or not user or "." in use.owner:
            return None
        defining = meant_packages(pack, use, self.versions)
        if len(defining) != 1 or defining[0] == user:
            return None
        files = pack.modules_defining(defining[0], use.owner)
        return (defining[0], files[0]) if len(files) == 1 else None

    def _stacks(self) -> tuple[str, ...]:
        return self.pairs.nearest_stacks({name: one.version for name, one in self.versions.items()})


def _source_folder(use: FailedUse) -> DerivedCause | None:
    """A package that is imported from its source code has no compiled modules."""
    top, _, rest = use.owner.partition(".")
    compiled = rest or "".join(use.names[:1])
    folder, found, _ = use.user.rpartition(f"/{top}/")
    is_compiled = compiled.rpartition(".")[2].startswith("_")
    is_import = use.expected in {Expected.MODULE, Expected.NAME}
    if not (is_import and is_compiled and found) or INSTALLED.search(use.user):
        return None
    package = package_of_import(top)
    return DerivedCause(
        degree=Degree.LIKELY,
        sentence=(
            f"Python imports {top} from the folder of its source code ({folder}), which has no compiled "
            f"`{top}.{compiled}`, instead of the installed package"
        ),
        proof=("the file in the innermost frame is in no folder of installed packages",),
        packages=(package,),
        remedy=f"start from another folder, or build {package} in this folder",
    )


def _involved(use: FailedUse) -> dict[str, None]:
    """The packages that a use is about: owner, user and giver of a symbol, as far as the text names them."""
    names = [package_of_file(use.defined_in), package_of_file(use.user)]
    if use.expected in {Expected.SYMBOL, Expected.LIBRARY_VERSION}:
        names = [*map(giver_of, use.names), package_of_library(use.owner), *names]
    elif use.expected in {Expected.OPERATOR, Expected.KERNEL} or "::" in use.owner:
        names = [OPERATOR_NAMESPACES.get(use.owner.partition("::")[0], ""), *names]
    elif use.expected is Expected.MODEL_TYPE:
        names = ["transformers", *names]
    elif use.expected is Expected.ARCHITECTURE:
        names = ["vllm", *names]
    elif use.owner.partition(".")[0] in CHECKED_OUT:
        names = [package_of_import(use.owner), *names]
    return dict.fromkeys(filter(None, names))


def _subject(owner: str, use: FailedUse) -> str:
    names = ", ".join(f"`{name}`" for name in use.names)
    match use.expected:
        case Expected.KEYWORD:
            return f"`{owner}` takes {names}"
        case Expected.ARGUMENT:
            return f"`{owner}` can be called without {names}"
        case Expected.POSITIONAL:
            return f"`{owner}` takes {names} positional arguments"
        case Expected.MODULE:
            return f"the module `{owner}` exists"
        case Expected.MODEL_TYPE:
            return f"transformers has the model type {names}"
        case Expected.ARCHITECTURE:
            return f"vllm has the model class {names}"
        case _:
            of = f"`{owner}` has " if owner else ""
            return f"{of}{names}" if names else f"`{owner}`"
