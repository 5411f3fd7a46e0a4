"""Loads matrix.yaml: checks the schema, then references and versions, and reports all problems at once."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness import __version__
from harness.errors import InputError, Problem
from harness.matrix.cells.pins import placeholders
from harness.matrix.document.form import check_form
from harness.matrix.document.included_documents import SHIPPED_NAME, LayeredDocument, with_includes
from harness.matrix.document.yaml_positions import Document, NodePath, load_yaml, parse_yaml
from harness.matrix.model.cell import KnownInconsistency
from harness.matrix.model.constraints import Condition, PublishedTable
from harness.matrix.model.definitions import (
    Axis,
    Expectation,
    Recipe,
    ReportedFailure,
    Runner,
    Stack,
    WheelVariants,
)
from harness.matrix.model.versions import Scheme
from harness.matrix.reading.read_migrations import read_migration
from harness.matrix.reading.read_patch_places import read_patch_place
from harness.matrix.reading.read_profiles import read_profile
from harness.matrix.reading.read_rules import (
    published_versions,
    read_constraint,
    read_pin_rule,
    read_table,
)
from harness.matrix.reading.read_suites import read_suite
from harness.matrix.reading.resolve_names import Entry, NameResolver, mapping, text, texts
from harness.matrix.version_matrix import Matrix

MAX_PROBLEMS = 100
_UNTIL = re.compile(r"(?P<axis>[a-z][a-z0-9_]*)\s+(?P<specifier>\S.*)")


def load_matrix(path: Path) -> Matrix:
    """Load a matrix file; InputError lists every problem with file, line and column."""
    return _load(with_includes(load_yaml(path), path))


def parse_matrix(source: str, file: Path | str = "matrix.yaml") -> Matrix:
    """The matrix in the text `source`; `file` names it in errors."""
    return _load(with_includes(parse_yaml(source, file), None))


def _load(document: Document) -> Matrix:
    data, problems = check_form(document)
    problems = sorted([*document.problems, *problems], key=_position)
    if data is None:
        raise InputError.of(problems[:MAX_PROBLEMS])
    loader = _MatrixLoader(document)
    matrix = loader.matrix(data)
    problems = sorted([*problems, *loader.problems], key=_position)
    if problems:
        raise InputError.of(problems[:MAX_PROBLEMS])
    return matrix


def _position(problem: Problem) -> tuple[int, int]:
    return (problem.where.line, problem.where.column) if problem.where else (0, 0)


class _MatrixLoader(NameResolver):
    """Builds the matrix from data that satisfies the schema."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.tables: dict[str, PublishedTable] = {}

    def matrix(self, data: Entry) -> Matrix:
        """The whole matrix, in the order of the file."""
        for section in ("axes", "profiles"):
            if self.document.data.get(section, {}) == {}:
                self.problem(
                    (),
                    f"key '{section}' is missing",
                    fix=f"add '{section}:', or include: {SHIPPED_NAME}:{__version__}",
                )
        # Axes and tables come first, because all other entries refer to them.
        for name, entry in data.get("axes", {}).items():
            self.axes[name] = self._axis(name, entry)
        for name, entry in data.get("published", {}).items():
            self.tables[name] = read_table(self, name, entry)
        for name, axis in self.axes.items():
            self.axes[name] = replace(axis, published=published_versions(axis, self.tables.values()))
        layers = self.document if isinstance(self.document, LayeredDocument) else None
        recipes = data.get("recipes", {})
        stacks = self._stacks(data.get("stacks", {}))
        pins, overrides = data.get("pins", []), data.get("overrides", [])
        matrix = Matrix(
            file=self.document.file,
            included_files=layers.files if layers else (),
            replaced=layers.replaced if layers else (),
            includes_shipped=bool(layers and layers.includes_shipped),
            patch_places=tuple(
                read_patch_place(self, index, entry) for index, entry in enumerate(data.get("patches", []))
            ),
            axes=self.axes,
            stacks=stacks,
            published=self.tables,
            constraints={
                name: read_constraint(self, self.tables, name, entry)
                for name, entry in data.get("constraints", {}).items()
            },
            pin_rules=tuple(
                read_pin_rule(self, self.tables, ("pins", index), entry) for index, entry in enumerate(pins)
            ),
            override_rules=tuple(
                read_pin_rule(self, self.tables, ("overrides", index), entry)
                for index, entry in enumerate(overrides)
            ),
            recipes={name: self._recipe(name, recipes) for name in recipes},
            profiles={
                name: read_profile(self, name, entry, list(stacks))
                for name, entry in data.get("profiles", {}).items()
            },
            suites={name: read_suite(self, name, entry) for name, entry in data.get("suites", {}).items()},
            runners={name: self._runner(name, entry) for name, entry in data.get("runners", {}).items()},
            expectations={
                name: self._expectation(name, entry) for name, entry in data.get("expectations", {}).items()
            },
            migrations={
                name: read_migration(self, name, entry) for name, entry in data.get("migrations", {}).items()
            },
        )
        return matrix.with_migrations({})

    def _axis(self, name: str, entry: Entry) -> Axis:
        path: NodePath = ("axes", name)
        axis = Axis(
            name=name,
            title=text(entry["title"]),
            scheme=Scheme(entry["scheme"]),
            source=text(entry["source"]),
            package=text(entry.get("package", "")),
            on_index=entry.get("on_index", True),
            repository=text(entry.get("repository", "")),
            alternatives=tuple(text(one["address"]) for one in entry.get("alternatives", [])),
            tag=text(entry.get("tag", "")),
            build_env=mapping(entry.get("build_env")),
            extra_index=tuple(texts(entry.get("extra_index", []))),
            variants=_variants(entry.get("variants")),
            values={value: mapping(facts) for value, facts in entry.get("values", {}).items()},
            where=self.document.where(path, key=True),
        )
        if "host" in entry:
            words = texts(entry["host"])
            found = [self.specifier((*path, "host"), axis, word) for word in words]
            axis = replace(axis, host=Condition(axis=name, specifiers=tuple(one for one in found if one)))
        if axis.tag and (self.attempt((*path, "tag"), lambda: placeholders(axis.tag)) or ()) != ("version",):
            self.problem(
                (*path, "tag"),
                f"tag {axis.tag!r} must contain {{version}}",
                fix="write a pattern such as v{version}",
            )
        if axis.package and not axis.on_index and not axis.repository:
            self.problem(
                path,
                f"axis {name!r} is not on the package index and has no repository",
                fix="add 'repository:', so that it can be built from source",
            )
        for value in axis.values:
            version = self.attempt((*path, "values", value), functools.partial(axis.parse, value), key=True)
            if version is not None and str(version) != value:
                self.problem(
                    (*path, "values", value),
                    f"{value!r} is not in normal form",
                    fix=f"write {version}",
                    key=True,
                )
        return axis

    def _stacks(self, entries: Mapping[str, Entry]) -> dict[str, Stack]:
        """The stacks; failures of the stacks in `failures_of` come after the stack's own."""
        own = {name: self._stack(name, entry) for name, entry in entries.items()}
        shared: dict[str, list[ReportedFailure]] = {name: [] for name in own}
        for name, entry in entries.items():
            for index, other in enumerate(texts(entry.get("failures_of", []))):
                path: NodePath = ("stacks", name, "failures_of", index)
                if other not in own or other == name:
                    self.problem(path, f"{other!r} is no other stack", fix="name a stack of `stacks`")
                elif not own[other].failures:
                    self.problem(
                        path, f"the stack {other!r} lists no failures", fix="name the stack that lists them"
                    )
                else:
                    shared[name] += own[other].failures
        stacks = {
            name: replace(stack, failures=(*stack.failures, *shared[name])) for name, stack in own.items()
        }
        for name, stack in stacks.items():
            if stack.failures and stack.no_failures:
                self.problem(
                    ("stacks", name, "no_failures"),
                    f"the stack {name!r} has failures",
                    fix="remove `no_failures`, or the failures",
                )
        return stacks

    def _stack(self, name: str, entry: Entry) -> Stack:
        path: NodePath = ("stacks", name)
        axes = self.values((*path, "axes"), entry["axes"])
        return Stack(
            name=name,
            title=text(entry["title"]),
            source=text(entry["source"]),
            axes={axis: str(version) for axis, version in axes.items()},
            recipe=self.recipe(path, entry),
            findings=self._findings(path, entry),
            notes=tuple(texts(entry.get("notes", []))),
            failures=tuple(
                ReportedFailure(
                    logs=tuple(texts(failure["logs"])),
                    cause=text(failure["cause"]),
                    source=text(failure["source"]),
                    where=self.document.where((*path, "failures", index)),
                )
                for index, failure in enumerate(entry.get("failures", []))
            ),
            no_failures=text(entry.get("no_failures", "")),
            provenance={axis: self.document.where((*path, "axes", axis)) for axis in axes},
            where=self.document.where(path, key=True),
        )

    def _findings(self, path: NodePath, entry: Entry) -> tuple[KnownInconsistency, ...]:
        findings = []
        for index, finding in enumerate(entry.get("findings", [])):
            at: NodePath = (*path, "findings", index)
            axes = finding.get("axes", [])
            for position, axis in enumerate(axes):
                self.axis((*at, "axes", position), axis)
            what, source = text(finding["what"]), text(finding["source"])
            findings.append(
                KnownInconsistency(what=what, source=source, axes=tuple(axes), where=self.document.where(at))
            )
        return tuple(findings)

    def _recipe(self, name: str, recipes: dict[str, Entry]) -> Recipe:
        path: NodePath = ("recipes", name)
        entry, bases = recipes[name], self._bases(name, recipes)
        chain = [*(recipes[base] for base in reversed(bases)), entry]
        return Recipe(
            name=name,
            title=text(entry["title"]),
            kind=entry.get("kind", "train"),
            algorithm=text(entry["algorithm"]),
            entry=text(entry["entry"]),
            overrides={key: value for base in chain for key, value in base.get("overrides", {}).items()},
            env={key: value for base in chain for key, value in mapping(base.get("env")).items()},
            nodes=entry.get("nodes", 1),
            cards=entry.get("cards", 1),
            model=text(entry["model"]),
            source=text(entry["source"]),
            bases=tuple(bases),
            findings=self._findings(path, entry),
            notes=tuple(texts(entry.get("notes", []))),
            where=self.document.where(path, key=True),
        )

    def _bases(self, name: str, recipes: dict[str, Entry]) -> list[str]:
        """The recipes that it extends, the closest first."""
        chain = [name]
        while base := recipes[chain[-1]].get("base"):
            at: NodePath = ("recipes", chain[-1], "base")
            if base in chain:
                if name == chain[-1]:
                    self.problem(
                        at,
                        f"recipes extend each other in a cycle: {' -> '.join([*chain, base])}",
                        fix="remove 'base' from one of them",
                    )
                break
            if not self.known(at, "recipe", base, self.names("recipes")) or base not in recipes:
                break
            chain.append(base)
        return chain[1:]

    def _runner(self, name: str, entry: Entry) -> Runner:
        path: NodePath = ("runners", name)
        families = self.axes["soc"].values if "soc" in self.axes else {}
        for number, family in enumerate(socs := texts(entry.get("soc", []))):
            self.known((*path, "soc", number), "SoC family", family, families)
        keys = tuple(texts(entry.get("keys", [])))
        if keys and not socs:
            self.problem(
                path,
                f"the runner {name!r} has keys but no soc; its signatures count for its own NPUs only",
                fix="add its SoC families, for example `soc: [a2]`",
            )
        return Runner(
            name=name,
            title=text(entry["title"]),
            kind=entry["kind"],
            devices=tuple(entry["devices"]),
            labels=mapping(entry.get("labels")),
            where=self.document.where(path, key=True),
            socs=tuple(socs),
            keys=keys,
            namespace=text(entry.get("namespace", "npu-matrix")),
            revoked_keys=text(entry.get("revoked_keys") or ""),
        )

    def _expectation(self, name: str, entry: Entry) -> Expectation:
        path: NodePath = ("expectations", name)
        cells = entry["cells"]
        date, version = self._until((*path, "until"), text(entry["until"]))
        return Expectation(
            id=name,
            cells=cells if isinstance(cells, str) else "",
            conditions=() if isinstance(cells, str) else self.conditions((*path, "cells"), cells),
            check=text(entry["check"]),
            state=entry["state"],
            because=tuple(texts(entry.get("because", []))),
            reason=text(entry["reason"]),
            source=text(entry["source"]),
            owner=text(entry["owner"]),
            until_date=date,
            until_version=version,
            where=self.document.where(path, key=True),
        )

    def _until(self, path: NodePath, word: str) -> tuple[dt.date | None, Condition | None]:
        try:
            return dt.date.fromisoformat(word), None
        except ValueError:
            match = _UNTIL.fullmatch(word)
        if match is None:
            self.problem(
                path,
                f"{word!r} is neither a date nor a condition",
                fix="write a date such as 2027-01-31, or a condition such as 'verl >=0.7.0'",
            )
            return None, None
        axis = self.axis(path, match["axis"])
        specifier = self.specifier(path, axis, match["specifier"]) if axis else None
        if axis is None or specifier is None:
            return None, None
        return None, Condition(axis=axis.name, specifiers=(specifier,))


def _variants(entry: Entry | None) -> WheelVariants | None:
    if not entry:
        return None
    return WheelVariants(
        index=text(entry["index"]), plain_for=tuple(texts(entry["plain_for"])), source=text(entry["source"])
    )
