"""What is known of the stacks that `advise` proposes: outcomes, findings, patches, driver, package index."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.devices.host.soc import driver_misfit
from harness.errors import HarnessError
from harness.matrix.model.cell import Cell
from harness.matrix.model.versions import Version
from harness.matrix.version_matrix import Matrix
from harness.outcome import Evidence
from harness.patchstack.stacks.patch_sources import PatchSources
from harness.plan.feasibility.newest_versions import CellProof, CheckProof
from harness.plan.feasibility.stack_advice import AdvisedStack, RejectedStack
from harness.plan.keys.facets import NPU_HOST_ARCHITECTURE
from harness.settings import Settings
from harness.sources.packages.index_lookup import PackageIndex, ReleaseNotFoundError
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.release_archive import TargetPlatform
from harness.workspace.downloads import run_quietly
from harness.workspace.execution.version_probe import known_proofs, profile_of_cell
from harness.workspace.planning.host_wheels import HostWheel, asking_once, host_wheels, lookup_variants
from harness.workspace.planning.open_plan import expectations, patch_sources

#: The axes that a cell must have for its outcomes to be about a stack; others are compared if it has them.
_DECISIVE = ("verl", "vllm_ascend", "torch_npu", "cann", "soc", "device")
#: How many candidates the package index is asked for.
MOST_ASKED = 40
#: The evidence that counts for each kind of device. Neither counts for the other.
_COUNTING = {
    "npu": frozenset({Evidence.STATIC, Evidence.CPU, Evidence.HARDWARE}),
    "sim": frozenset({Evidence.STATIC, Evidence.CPU, Evidence.SIMULATED}),
}


@dataclass(frozen=True, kw_only=True)
class Risk:
    """Something that can go wrong, what to do about it, and where it is documented."""

    what: str
    mend: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class KnownStack:
    """A stack with what is known of it.

    cell: the cell of the matrix with these versions, None if there is none; profile: one that selects it.
    passed, failed: checks with outcomes of the same kind of device. never_tried: checks without one.
    expected: failures that the matrix expects, in words. on_index: package -> whether the index has the
    version, None if the index was not asked or did not respond. wheels: of packages whose wheels are built
    for particular NPUs.
    """

    stack: AdvisedStack
    cell: Cell | None
    profile: str
    passed: tuple[CheckProof, ...]
    failed: tuple[CheckProof, ...]
    never_tried: tuple[str, ...]
    expected: tuple[str, ...]
    risks: tuple[Risk, ...]
    wheels: tuple[HostWheel, ...]
    on_index: Mapping[str, bool | None]


def releases_on_index(matrix: Matrix, axes: Sequence[str]) -> dict[str, list[Version]]:
    """Axis -> the newest final release on the package index, for axes of packages that the index has.

    An index that does not respond gives nothing.
    """
    index = _index()
    found: dict[str, list[Version]] = {}
    for name in axes:
        axis = matrix.axes[name]
        try:
            files = index.files([axis.package]) if axis.package and axis.on_index else ()
            found[name] = [axis.parse(file.version) for file in files[:1]]
        except (HarnessError, ValueError):
            continue
    return found


def known_stacks(
    settings: Settings,
    matrix: Matrix,
    stacks: Sequence[AdvisedStack],
    driver: str,
    *,
    most: int,
    ask_index: bool,
) -> tuple[tuple[KnownStack, ...], tuple[RejectedStack, ...]]:
    """What is known of the first stacks, and the stacks before them that their Python cannot install.

    driver: of the host, "" if it is unknown. most: how many stacks.
    """
    if not stacks:
        return (), ()
    context, proofs = known_proofs(settings, matrix, ())
    lookup = asking_once(lookup_variants) if ask_index else None
    index = AskedIndex(index=_index() if ask_index else None)
    found: list[KnownStack] = []
    rejected: list[RejectedStack] = []
    for stack in stacks[:MOST_ASKED]:
        installable, on_index, reasons = index.installable(matrix, stack)
        if reasons:
            rejected.append(RejectedStack(axes=stack.axes, reasons=reasons))
        elif len(found) < most:
            wheels = tuple(host_wheels(matrix, installable.values, driver, lookup))
            proof = _proof(context.matrix, installable, proofs)
            sources = patch_sources(settings, matrix)
            risks = (*_wheel_risks(wheels), *_risks(matrix, installable, sources, driver))
            found.append(_known(context.matrix, installable, proof, wheels, on_index, risks))
        if len(found) == most:
            break
    return tuple(found), tuple(rejected)


def _known(
    matrix: Matrix,
    stack: AdvisedStack,
    proof: CellProof | None,
    wheels: Sequence[HostWheel],
    on_index: Mapping[str, bool | None],
    risks: tuple[Risk, ...],
) -> KnownStack:
    """The stack with the outcomes of its cell that count for its kind of device."""
    cell = proof.cell if proof else None
    profile = profile_of_cell(matrix, cell.id) if cell else ""
    counting = _COUNTING.get(str(stack.axes["device"]), frozenset())
    checks = [one for one in proof.checks if one.evidence in counting] if proof else []
    tried = {one.check for one in checks if one.status}
    return KnownStack(
        stack=stack,
        cell=cell,
        profile=profile,
        passed=tuple(one for one in checks if one.status and one.status.value == "pass"),
        failed=tuple(one for one in checks if one.status and one.status.value != "pass"),
        never_tried=tuple(one.check for one in proof.checks if one.check not in tried) if proof else (),
        expected=tuple(_expected(matrix, profile, cell)) if cell else (),
        risks=risks,
        wheels=tuple(one for one in wheels if one.variants),
        on_index=on_index,
    )


def _index() -> PackageIndex:
    return PackageIndex(settings=index_environment(os.environ), command=run_quietly)


def _proof(matrix: Matrix, stack: AdvisedStack, proofs: Mapping[str, CellProof]) -> CellProof | None:
    """The cell of the matrix that has the versions of the stack, the one with most outcomes of several."""
    matching = [proof for proof in proofs.values() if _has_versions(matrix, proof.cell, stack)]
    return max(matching, key=lambda proof: sum(bool(one.status) for one in proof.checks), default=None)


def _architecture(stack: AdvisedStack) -> str:
    """The machine architecture of the hosts that the stack is for."""
    if str(stack.axes["device"]) != "npu":
        return platform.machine()
    return str(stack.axes.get("arch", NPU_HOST_ARCHITECTURE))


def _has_versions(matrix: Matrix, cell: Cell, stack: AdvisedStack) -> bool:
    leading = [axis for axis in _DECISIVE if axis in stack.axes]
    if cell.device == "npu" and cell.axes.get("arch", NPU_HOST_ARCHITECTURE) != _architecture(stack):
        return False
    return all(axis in cell.axes for axis in leading) and all(
        version.ref == "" and stack.axes[axis].is_same(version)
        for axis in stack.axes
        if axis in cell.axes and axis != "python"
        for version in [matrix.axes[axis].parse(cell.axes[axis])]
    )


def _expected(matrix: Matrix, profile: str, cell: Cell) -> Iterator[str]:
    expected = expectations(matrix, profile)
    for one in matrix.expectations.values():
        found = expected(cell.id, one.check)
        if found is not None and found.id == one.id:
            yield f"{one.check} is expected to end as {found.state}: {found.reason}"


def _wheel_risks(wheels: Sequence[HostWheel]) -> Iterator[Risk]:
    for one in wheels:
        if one.problem:
            yield Risk(what=one.problem, mend=one.mend, source=one.source)


def _risks(matrix: Matrix, stack: AdvisedStack, sources: PatchSources, driver: str) -> Iterator[Risk]:
    values = stack.values
    misfit = driver_misfit(values["cann"], driver) if driver else ""
    if misfit:
        yield Risk(what=misfit, mend="update driver and firmware, or choose an older CANN")
    elif not driver and values["device"] == "npu":
        what = "the driver is not known, so it was not compared with CANN"
        yield Risk(what=what, mend="pass --driver VERSION")
    for statement in stack.departs_from:
        yield Risk(
            what=f"{statement.table} lists {statement.axis} {statement.text} for {statement.row}, "
            f"this stack has {stack.axes[statement.axis].short}",
            mend="run the checks before you rely on it",
            source=statement.source,
        )
    for statement in stack.overruled:
        yield Risk(
            what=f"{statement.table} lists {statement.axis} {statement.text} for {statement.row}, but the "
            f"metadata of a package requires {stack.axes[statement.axis].short}",
            mend=f"install {statement.axis} {stack.axes[statement.axis].short}",
            source=statement.source,
        )
    for axis, text, source in stack.not_pinned:
        title, repository = matrix.axes[axis].title, matrix.axes[axis].repository
        yield Risk(
            what=f"the stack has no {title}, which Megatron on NPUs needs; "
            + (f"a document lists {text}, which is no release" if text else "no document lists one"),
            mend=f"pin a commit of it in the stack, as `{axis}: VERSION@COMMIT`: {repository}",
            source=source,
        )
    for axis in stack.undocumented:
        yield Risk(
            what=f"no document lists {axis} {stack.axes[axis].short}; its metadata permits the combination",
            mend="run the checks before you rely on it",
        )
    # What single tables list is said above, statement by statement.
    for violation in (one for one in stack.unlisted if one.rule not in matrix.published):
        yield Risk(
            what=f"{violation.what}: {violation.reason}",
            mend="choose versions that the rule lists, or run the checks on this host before you rely on it",
            source=violation.source,
        )
    for upstream in (one for one in sources.upstreams if one in stack.axes):
        patches = [patch for patch in sources.select(upstream, values) if not patch.unread]
        if patches:
            names = ", ".join(patch.id for patch in patches)
            yield Risk(
                what=f"{upstream} {values[upstream]} has {len(patches)} faults that patches mend: {names}",
                mend="apply them: environments and exports of npu-matrix contain them",
            )
    yield from _findings(matrix, stack)


def _findings(matrix: Matrix, stack: AdvisedStack) -> Iterator[Risk]:
    """Findings of stacks with this verl whose versions, on all axes of the finding, are those of this stack.

    A finding is about the document of its stack: of another verl, it says nothing about this one.
    """
    for known in matrix.stacks.values():
        for finding in known.findings:
            same = [
                axis in known.axes
                and axis in stack.axes
                and stack.axes[axis].is_same(version := matrix.axes[axis].parse(known.axes[axis]))
                and not version.ref
                for axis in ("verl", *finding.axes)
            ]
            if finding.axes and all(same):
                yield Risk(
                    what=f"{finding.what} (stack {known.name})",
                    mend=f"see what is known of it: npu-matrix explain {known.name}",
                    source=finding.source,
                )


@dataclass(kw_only=True)
class AskedIndex:
    """The package index, asked once for each release and platform. index: None if it is not asked."""

    index: PackageIndex | None
    _asked: dict[tuple[str, TargetPlatform | None], bool | None] = field(default_factory=dict)

    def installable(
        self, matrix: Matrix, stack: AdvisedStack
    ) -> tuple[AdvisedStack, dict[str, bool | None], tuple[str, ...]]:
        """The stack with the newest Python for which the index has its packages, and `packages_of` that.

        If there is none, the stack as it is, with the reasons.
        """
        first = self.packages_of(matrix, stack)
        if first[1]:
            for python in stack.older_pythons:
                older = replace(stack, axes={**stack.axes, "python": python})
                on_index, reasons = self.packages_of(matrix, older)
                if not reasons:
                    return older, on_index, ()
        return stack, *first

    def packages_of(
        self, matrix: Matrix, stack: AdvisedStack
    ) -> tuple[dict[str, bool | None], tuple[str, ...]]:
        """Package -> whether the index has the version, and why the stack cannot be installed as it is.

        A package that the index has for other versions of Python only cannot be installed. One that it lacks
        altogether may be on the vendor's index.
        """
        found: dict[str, bool | None] = {}
        reasons: list[str] = []
        arch = _architecture(stack)
        target = TargetPlatform(python=str(stack.axes["python"]), arch=arch)
        for name, version in stack.values.items():
            axis = matrix.axes[name]
            if not axis.package or not axis.on_index:
                continue
            release = f"{axis.package}=={version}"
            fits = found[axis.package] = self._has(release, target)
            if fits is False:
                found[axis.package] = self._has(release, None)
                if found[axis.package]:
                    reasons.append(
                        f"{release} is published, but not for Python {target.python} on {arch} "
                        "(package index)"
                    )
        return found, tuple(reasons)

    def _has(self, release: str, target: TargetPlatform | None) -> bool | None:
        """Whether the index has files of the release for this platform; None if it did not respond."""
        if (release, target) not in self._asked:
            try:
                has: bool | None = bool(self.index.files([release], target)) if self.index else None
            except ReleaseNotFoundError:
                has = False
            except HarnessError:
                has = None
            self._asked[release, target] = has
        return self._asked[release, target]
