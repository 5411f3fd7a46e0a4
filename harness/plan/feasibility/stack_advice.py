"""The newest stacks for a host: combinations of published versions, judged by all rules of the matrix.

A candidate is a release of verl with a release of vllm-ascend, or with a build of torch_npu if no vLLM is
needed. Its other versions are those that the tables list for these two and for the CANN of the host. What
tables list only as a branch, such as Megatron-core, has the version of a stack with the same verl. Nothing
comes from a profile. Which candidates a package index has, and what is known of them from outcomes, is looked
up elsewhere.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import InputError, did_you_mean
from harness.matrix.cells.violations import Violation
from harness.matrix.model.constraints import (
    Condition,
    PublishedTable,
    Versions,
    ViolationKind,
    allows,
    published_specifiers,
)
from harness.matrix.model.definitions import Stack
from harness.matrix.model.versions import Scheme, Specifier, Version, parse_version
from harness.matrix.version_matrix import Matrix

#: The minor versions of Python that a stack can have; the newest that all tables permit is chosen.
PYTHONS = tuple(f"3.{minor}" for minor in range(9, 15))
#: The axes of a candidate, in the order in which they are shown.
SHOWN = (
    *("verl", "vllm_ascend", "vllm", "torch_npu", "torch", "triton_ascend", "transformers"),
    *("megatron_core", "mindspeed", "mbridge", "python", "cann", "soc", "arch", "device"),
)
#: Axes whose versions tables list as branches or tags, in the order of their choice.
BRANCHES = ("megatron_core", "mindspeed", "mbridge")


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that a stack must offer. axes: what must be in it. condition: AXIS and specifier, or ""."""

    axes: tuple[str, ...] = ("verl",)
    condition: tuple[str, str] | None = None
    source: str = ""


NEEDS: Mapping[str, Need] = {
    "grpo": Need(),
    "gspo": Need(condition=("verl", ">=0.6.0"), source="verl-project/verl PR 2775, first in 0.6.0"),
    "verl": Need(),
    "vllm": Need(axes=("vllm", "vllm_ascend")),
    "megatron": Need(axes=("verl", "megatron_core", "mindspeed")),
}


@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """The host and what it is for. conditions: further versions that are asked for.

    python: "" for any. arch: "" for that of cells without this axis.
    """

    soc: str
    cann: str
    device: str = "npu"
    python: str = ""
    arch: str = ""
    needs: tuple[str, ...] = ("grpo", "vllm")
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        """InputError for an unknown need."""
        for need in self.needs:
            if need not in NEEDS:
                raise InputError(f"unknown need {need!r}", fix=did_you_mean(need, NEEDS))

    @property
    def axes(self) -> frozenset[str]:
        """The packages that the stack must have."""
        return frozenset(axis for need in self.needs for axis in NEEDS[need].axes)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a published table says of one axis. binding: whether it is the metadata of a package."""

    axis: str
    text: str
    specifiers: tuple[Specifier, ...]
    table: str
    row: str
    source: str
    binding: bool

    def permits(self, version: Version) -> bool:
        """Whether the statement allows this version, or says nothing decidable about it."""
        return any(allows(one, version) in (True, None) for one in self.specifiers)

    @property
    def listed(self) -> tuple[Version, ...]:
        """The versions that the statement names."""
        clauses = [clause for one in self.specifiers for clause in one.clauses]
        return tuple(clause.version for clause in clauses if clause.version is not None)

    def __str__(self) -> str:
        return f"{self.axis} {self.text} ({self.table}, {self.row}; {self.source})"


class Publication(str, enum.Enum):
    """How far documents list a combination. PARTLY: what they say agrees, but none describes all of it."""

    PUBLISHED = "published"
    PARTLY = "partly published"
    DEPARTS = "not published"


@dataclass(frozen=True, kw_only=True)
class AdvisedStack:
    """A combination of versions that no rule excludes.

    supported_by: the statements of published tables that it agrees with. departs_from: those that it does not
    agree with. overruled: documents that the metadata of a package contradicts, so that no installation can
    agree with both. unlisted: the rules that say that nobody published this combination. undocumented:
    leading axes whose version no document describes. not_pinned: (axis, what a document lists for it or
    "", the document) for packages that the stack needs and no stack of the matrix pins. cann_distance: how
    far the CANN for which its engine is published is from that of the host. older_pythons: other versions of
    Python that documents and rules permit as well, newest first.
    """

    axes: Mapping[str, Version]
    supported_by: tuple[Statement, ...]
    departs_from: tuple[Statement, ...]
    overruled: tuple[Statement, ...]
    unlisted: tuple[Violation, ...]
    undocumented: tuple[str, ...]
    not_pinned: tuple[tuple[str, str, str], ...] = ()
    cann_distance: tuple[bool, int] = (False, 0)
    older_pythons: tuple[Version, ...] = ()

    @property
    def level(self) -> Publication:
        """How far documents list the combination."""
        if self.departs_from:
            return Publication.DEPARTS
        return Publication.PARTLY if self.undocumented else Publication.PUBLISHED

    @property
    def departures(self) -> int:
        """In how many respects it is not what documents list."""
        return len(self.departs_from) + len(self.undocumented)

    @property
    def values(self) -> dict[str, str]:
        """Axis -> version, in the order in which it is shown."""
        return {axis: str(self.axes[axis]) for axis in SHOWN if axis in self.axes}


@dataclass(frozen=True, kw_only=True)
class RejectedStack:
    """A newer combination that a rule excludes, with the rules in words."""

    axes: Mapping[str, Version]
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """stacks: newest first, none of them older in every axis than another. rejected: newer, but excluded."""

    stacks: tuple[AdvisedStack, ...]
    rejected: tuple[RejectedStack, ...]


def stacks_of_authors(matrix: Matrix, request: AdviceRequest) -> tuple[Stack, ...]:
    """The stacks of matrix.yaml for this host with what is asked for, except migrations; newest verl first.

    Their authors often pin commits, which no table lists, so they are no candidates.
    """
    conditions = [*request.conditions, *_conditions(matrix, request)]
    host = {"soc": request.soc, "cann": request.cann, "device": request.device}
    # A document may list MindSpeed as a branch, and a stack leaves it out then.
    needed = request.axes - {"mindspeed"}
    found: list[tuple[Stack, Versions]] = []
    for stack in (one for one in matrix.stacks.values() if one.name not in matrix.migrations):
        axes = {axis: matrix.axes[axis].parse(value) for axis, value in stack.axes.items()}
        alike = all(
            axis in axes and axes[axis].is_same(matrix.axes[axis].parse(text)) for axis, text in host.items()
        )
        minor = ".".join(stack.axes.get("python", "").split(".")[:2])
        alike = alike and request.python in ("", minor) and stack.axes.get("arch", "") == request.arch
        if alike and needed <= axes.keys() and not any(one.holds(axes) is False for one in conditions):
            found.append((stack, axes))
    return tuple(stack for stack, _ in sorted(found, key=lambda pair: _order(pair[1]), reverse=True))


def advise_stacks(
    matrix: Matrix, request: AdviceRequest, on_index: Mapping[str, Sequence[Version]] | None = None
) -> Advice:
    """The newest stacks for a host that agree with every binding rule.

    on_index: axis -> releases on the package index that no table may list. InputError for a version that is
    none. Published combinations come before others; among those, newer ones.
    """
    tables = _Tables(matrix, on_index or {})
    stacks: list[AdvisedStack] = []
    rejected: list[RejectedStack] = []
    for chosen in _keys(matrix, request, tables):
        found = _complete(matrix, request, tables, chosen)
        if isinstance(found, AdvisedStack):
            stacks.append(found)
        elif found is not None:
            rejected.append(found)
    best = tuple(sorted(_newest(stacks), key=_rank, reverse=True))
    newest = max((_order(one.axes) for one in best), default=None)
    newer = [one for one in rejected if newest is None or _order(one.axes) > newest]
    return Advice(stacks=best, rejected=tuple(sorted(newer, key=lambda one: _order(one.axes), reverse=True)))


class _Tables:
    """The statements of the published tables, by axis and version of their key."""

    def __init__(self, matrix: Matrix, on_index: Mapping[str, Sequence[Version]]) -> None:
        self._matrix, self._on_index = matrix, on_index
        self._rows: dict[tuple[str, Version], list[Statement]] = {}
        self._branches: dict[tuple[str, Version, str], tuple[str, str]] = {}
        for table in matrix.published.values():
            if table.key in matrix.axes:
                self._read(table)

    def _read(self, table: PublishedTable) -> None:
        axes = self._matrix.axes
        # Tables of package metadata; installers follow them whatever documents say.
        binding = table.name.endswith("-metadata")
        for row in table.rows:
            fields = dict(zip(table.columns, row, strict=True))
            key = _parsed(axes[table.key].scheme, fields[table.key] or "")
            if key is None:
                continue
            statements = self._rows.setdefault((table.key, key), [])
            for axis, text in fields.items():
                if axis == table.key or axis not in axes or not text:
                    continue
                specifiers = published_specifiers(axes[axis].scheme, text)
                if not specifiers:
                    self._branches[table.key, key, axis] = (text, f"{table.source}, {table.date}")
                if specifiers:
                    statements.append(
                        Statement(
                            axis=axis,
                            text=text,
                            specifiers=specifiers,
                            table=table.name,
                            row=str(key),
                            source=f"{table.source}, {table.date}",
                            binding=binding,
                        )
                    )

    def versions(self, axis: str) -> list[Version]:
        """The versions of an axis that tables have a row for."""
        return sorted({key for name, key in self._rows if name == axis} | set(self._on_index.get(axis, ())))

    def documented(self, axis: str, version: Version) -> bool:
        """Whether a document, not only the metadata of the package, has a row for this version."""
        return any(not one.binding for one in self.of(axis, version))

    def of(self, axis: str, version: Version) -> list[Statement]:
        """What the tables say for one version of their key."""
        return self._rows.get((axis, version), [])

    def branch(self, axis: str, version: Version, of: str) -> tuple[str, str] | None:
        """What a table lists for the axis `of`, if it is no version, and the document."""
        return self._branches.get((axis, version, of))

    def listed(self, axis: str) -> list[Version]:
        """Every single version of an axis that a table names."""
        found = {
            clause.version
            for statements in self._rows.values()
            for statement in statements
            if statement.axis == axis
            for specifier in statement.specifiers
            for clause in specifier.clauses
            if clause.version is not None and clause.operator in ("==", "")
        }
        return sorted({*found, *self.versions(axis)})


def _keys(matrix: Matrix, request: AdviceRequest, tables: _Tables) -> Iterator[dict[str, Version]]:
    """The leading versions of each candidate: verl, and vllm-ascend or torch_npu."""
    engine = "vllm_ascend" if "vllm_ascend" in request.axes else "torch_npu"
    leading = [axis for axis in ("verl", engine) if axis == engine or axis in request.axes]
    conditions_given = request.conditions
    conditions = [*conditions_given, *_conditions(matrix, request)]
    for versions in itertools.product(*(tables.versions(axis) for axis in leading)):
        chosen = dict(zip(leading, versions, strict=True))
        if any(condition.holds(chosen) is False for condition in conditions):
            continue
        # A development release is a candidate only if it is asked for.
        if ".dev" in str(chosen.get("verl", "")) and not any(one.axis == "verl" for one in conditions_given):
            continue
        yield chosen


def _conditions(matrix: Matrix, request: AdviceRequest) -> list[Condition]:
    from harness.matrix.model.versions import parse_specifier

    wanted = [NEEDS[need].condition for need in request.needs]
    return [
        Condition(axis=one[0], specifiers=(parse_specifier(matrix.axes[one[0]].scheme, one[1]),))
        for one in wanted
        if one is not None
    ]


def _complete(
    matrix: Matrix, request: AdviceRequest, tables: _Tables, chosen: Mapping[str, Version]
) -> AdvisedStack | RejectedStack | None:
    """The stack with these leading versions; None if it is published for another CANN or SoC."""
    fixed: dict[str, Version] = {**chosen}
    host = {"cann": request.cann, "soc": request.soc, "device": request.device, "arch": request.arch}
    for axis, text in host.items():
        if text:
            fixed[axis] = matrix.axes[axis].parse(text)
    distance = _cann_distance(tables, chosen, fixed["cann"])
    if distance is None:
        return None
    statements = [one for axis, version in chosen.items() for one in tables.of(axis, version)]
    problems: list[str] = []
    pythons: tuple[Version, ...] = ()
    for axis in ("vllm", "torch_npu", "torch", "triton_ascend", "transformers", "python"):
        if axis in fixed or axis not in matrix.axes:
            continue
        about = [one for one in statements if one.axis == axis]
        versions = _best(matrix, request, tables, axis, about, fixed)
        if versions:
            fixed[axis] = versions[0]
            pythons = versions[1:] if axis == "python" else ()
            if axis == "torch_npu" and "vllm_ascend" in chosen:
                statements += [one for one in tables.of(axis, versions[0]) if one.axis != "cann"]
        elif about or axis == "python":
            problems.append(f"no {axis} agrees with " + " and ".join(map(str, about)))
    not_pinned = _add_branches(matrix, request, tables, fixed)
    if "megatron_core" in request.axes and "megatron_core" not in fixed:
        problems.append(f"no stack of the matrix says which megatron_core verl {chosen['verl']} has")
    if any(condition.holds(fixed) is False for condition in request.conditions):
        return None
    found = matrix.violations.of(fixed, ())
    problems += [
        f"{one.what}: {one.reason} ({one.source})" for one in found if one.kind is not ViolationKind.UNLISTED
    ]
    if problems:
        return RejectedStack(axes=fixed, reasons=tuple(problems))
    relevant = [one for one in statements if one.axis in fixed]
    against = [one for one in relevant if not one.permits(fixed[one.axis])]
    overruled = [one for one in against if _is_overruled(one, relevant)]
    return AdvisedStack(
        axes=fixed,
        supported_by=tuple(one for one in relevant if one.permits(fixed[one.axis])),
        departs_from=tuple(one for one in against if one not in overruled),
        overruled=tuple(overruled),
        undocumented=tuple(axis for axis in chosen if not tables.documented(axis, chosen[axis])),
        unlisted=tuple(one for one in found if one.kind is ViolationKind.UNLISTED),
        not_pinned=not_pinned,
        cann_distance=distance,
        older_pythons=pythons,
    )


def _add_branches(
    matrix: Matrix, request: AdviceRequest, tables: _Tables, fixed: dict[str, Version]
) -> tuple[tuple[str, str, str], ...]:
    """Add the versions that a stack with the same verl has of packages which tables list as branches.

    Returns those that no stack pins, with what a table lists.
    """
    if not request.axes.intersection(BRANCHES):
        return ()
    verl = fixed["verl"]
    alike = [
        one
        for one in matrix.stacks.values()
        if "verl" in one.axes and verl.is_same(version := matrix.axes["verl"].parse(one.axes["verl"]))
        if not version.ref
    ]
    left = []
    for axis in (one for one in BRANCHES if one in matrix.axes):
        known = next((one.axes[axis] for one in alike if axis in one.axes), None)
        if known is not None:
            fixed[axis] = matrix.axes[axis].parse(known)
        elif axis in request.axes:
            left.append((axis, *(tables.branch("verl", verl, axis) or ("", ""))))
    return tuple(left)


def _is_overruled(statement: Statement, others: Sequence[Statement]) -> bool:
    """Whether package metadata permits none of the versions that a document lists for the same axis."""
    binding = [one for one in others if one.binding and one.axis == statement.axis]
    return any(not any(one.permits(version) for version in statement.listed) for one in binding)


def _cann_distance(tables: _Tables, chosen: Mapping[str, Version], cann: Version) -> tuple[bool, int] | None:
    """How far the CANN for which the engine is published is from this one; None if it is not for this host.

    (False, 0) if it is published for this CANN, else whether it is for a newer CANN, and how many releases
    away that is. Kernels compiled for an older release of the same minor version are more likely to run than
    those for a newer one. Other minor versions are not for this host.

    verl's documents count too, if they list this engine for this CANN. A release without a row for CANN is
    for that of the torch_npu that it requires.
    """
    engine = "vllm_ascend" if "vllm_ascend" in chosen else "torch_npu"
    guide = tables.of("verl", chosen["verl"]) if "verl" in chosen else []
    named = {"cann": cann, engine: chosen[engine]}
    if named.keys() <= {one.axis for one in guide if one.axis in named and one.permits(named[one.axis])}:
        return False, 0
    about = [one for one in tables.of(engine, chosen[engine]) if one.axis == "cann"]
    if not about:
        required = [
            version
            for one in tables.of(engine, chosen[engine])
            if one.axis == "torch_npu"
            for version in one.listed
        ]
        about = [one for version in required for one in tables.of("torch_npu", version) if one.axis == "cann"]
    if any(one.permits(cann) for one in about):
        return False, 0
    minor = cann.release.split(".")[:2]
    near = [one for each in about for one in each.listed if one.release.split(".")[:2] == minor]
    known = [one for one in tables.listed("cann") if not one.is_same(cann)]
    between = [
        (cann < one, sum(min(one, cann) < other < max(one, cann) for other in known) + 1) for one in near
    ]
    return min(between, default=None)


def _best(
    matrix: Matrix,
    request: AdviceRequest,
    tables: _Tables,
    axis: str,
    about: Sequence[Statement],
    fixed: Versions,
) -> tuple[Version, ...]:
    """The versions of an axis that most statements permit, newest first."""
    parse = matrix.axes[axis].parse
    options: Iterable[Version]
    if axis == "python":
        wanted = (request.python,) if request.python else PYTHONS
        options = [parse(text) for text in wanted]
    elif axis == "torch" and "torch_npu" in fixed:
        options = [fixed["torch_npu"].release_version]
    elif axis == "vllm" and not about and "vllm_ascend" in fixed:
        options = [fixed["vllm_ascend"].release_version]
    elif not about:
        return ()
    else:
        options = tables.listed(axis)
    binding = [one for one in about if one.binding]
    possible = [one for one in options if all(statement.permits(one) for statement in binding)]
    conditions = [one for one in request.conditions if one.axis == axis]
    possible = [one for one in possible if all(condition.holds({axis: one}) for condition in conditions)]
    # If every rule excludes all of them, the newest shows why there is no stack.
    possible = [one for one in possible if not _excluded(matrix, {**fixed, axis: one})] or possible
    agreeing = {one: sum(statement.permits(one) for statement in about) for one in possible}
    best = [one for one in possible if agreeing[one] == max(agreeing.values())]
    return tuple(sorted(best, reverse=True))


def _excluded(matrix: Matrix, versions: Versions) -> bool:
    found = matrix.violations.of_constraints(versions)
    return any(one.kind is not ViolationKind.UNLISTED for one in found)


def _parsed(scheme: Scheme, text: str) -> Version | None:
    try:
        return parse_version(scheme, text)
    except ValueError:
        return None


def _newest(stacks: Sequence[AdvisedStack]) -> Iterator[AdvisedStack]:
    """The stacks that are not older than another one that is at least as well published."""
    for one in stacks:
        if not any(_dominates(other, one) for other in stacks if other is not one):
            yield one


def _dominates(left: AdvisedStack, right: AdvisedStack) -> bool:
    """Whether `left` is at least as new in all leading axes, newer in one, and departs no more.

    Nor is it for a CANN that is farther from that of the host.
    """
    leading = [
        axis for axis in ("verl", "vllm_ascend", "torch_npu") if axis in left.axes and axis in right.axes
    ]
    if any(left.axes[axis] < right.axes[axis] for axis in leading):
        return False
    newer = any(right.axes[axis] < left.axes[axis] for axis in leading)
    as_near = left.cann_distance <= right.cann_distance
    return newer and as_near and left.departures <= right.departures


def _rank(stack: AdvisedStack) -> tuple[object, ...]:
    """Stacks that depart least from what documents list come first, then those for the nearest CANN, and of
    these the newer ones."""
    is_newer, releases = stack.cann_distance
    return (-stack.departures, not is_newer, -releases, _order(stack.axes))


def _order(axes: Versions) -> tuple[object, ...]:
    return tuple(axes[axis].order for axis in ("verl", "vllm_ascend", "torch_npu") if axis in axes)
