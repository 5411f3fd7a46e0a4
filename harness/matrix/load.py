"""Reads matrix.yaml: its form (pydantic), then what its names and versions refer to; all problems at once."""

from __future__ import annotations

import datetime as dt
import functools
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from harness.errors import InputError, Location, Problem
from harness.matrix import schema
from harness.matrix.cells import Finding
from harness.matrix.constraints import (
    Agreement,
    Condition,
    Constraint,
    Listing,
    Requirement,
    Table,
    table_listing,
)
from harness.matrix.matrix import Matrix
from harness.matrix.model import (
    Axis,
    Expectation,
    PinRule,
    Profile,
    Recipe,
    Runner,
    Selection,
    Stack,
)
from harness.matrix.problems import MAX_PROBLEMS, validate
from harness.matrix.suggest import did_you_mean
from harness.matrix.versions import Scheme, Specifier, Version, parse_specifier
from harness.matrix.yaml_positions import Document, NodePath, load_yaml, parse_yaml

T = TypeVar("T")
_UNTIL = re.compile(r"(?P<axis>[a-z][a-z0-9_]*)\s+(?P<specifier>\S.*)")


def load_matrix(path: Path) -> Matrix:
    """The matrix in the file; InputError holds every problem found, each with file, line and column."""
    return _load(load_yaml(path))


def parse_matrix(text: str, file: Path | str = "matrix.yaml") -> Matrix:
    """The matrix in `text`; `file` names it in errors."""
    return _load(parse_yaml(text, file))


def _load(document: Document) -> Matrix:
    model, problems = validate(document)
    if model is None:
        raise InputError.of(problems)
    loader = _Loader(document, model)
    matrix = loader.matrix()
    problems = sorted([*problems, *loader.problems], key=_position)
    if problems:
        raise InputError.of(problems[:MAX_PROBLEMS])
    return matrix


def _position(problem: Problem) -> tuple[int, int]:
    return (problem.where.line, problem.where.column) if problem.where else (0, 0)


class _Loader:
    """Turns the file's entries into the model; a part that is wrong becomes a problem and is left out."""

    def __init__(self, document: Document, model: schema.MatrixFile) -> None:
        self.document = document
        self.model = model
        self.problems: list[Problem] = []
        self.axes = {name: self._axis(name, entry) for name, entry in model.axes.items()}
        self.tables: dict[str, Table] = {}

    def matrix(self) -> Matrix:
        """All of the file, in its order."""
        model = self.model
        self.tables = {name: self._table(name, entry) for name, entry in model.published.items()}
        recipes = {name: self._recipe(name, entry) for name, entry in model.recipes.items()}
        return Matrix(
            file=self.document.file,
            axes=self.axes,
            stacks={name: self._stack(name, entry) for name, entry in model.stacks.items()},
            published=self.tables,
            constraints={name: self._constraint(name, entry) for name, entry in model.constraints.items()},
            pin_rules=tuple(
                self._pin(("pins", index), entry, entry.require, "require")
                for index, entry in enumerate(model.pins)
            ),
            override_rules=tuple(
                self._pin(("overrides", index), entry, entry.override, "override")
                for index, entry in enumerate(model.overrides)
            ),
            recipes=recipes,
            profiles={name: self._profile(name, entry) for name, entry in model.profiles.items()},
            runners={name: self._runner(name, entry) for name, entry in model.runners.items()},
            expectations={name: self._expectation(name, entry) for name, entry in model.expectations.items()},
        )

    def _axis(self, name: str, entry: schema.AxisEntry) -> Axis:
        path: NodePath = ("axes", name)
        axis = Axis(
            name=name,
            title=entry.title,
            scheme=Scheme(entry.scheme),
            source=entry.source,
            package=entry.package or "",
            on_index=entry.on_index,
            repository=entry.repository or "",
            tag=entry.tag or "",
            build_env=entry.build_env,
            extra_index=tuple(entry.extra_index),
            values=entry.values,
            where=self.document.where(path, key=True),
        )
        if entry.tag and "{version}" not in entry.tag:
            self._problem((*path, "tag"), f"tag {entry.tag!r} lacks {{version}}", fix="such as 'v{version}'")
        if entry.package and not entry.on_index and not entry.repository:
            self._problem(
                path, f"axis {name!r} is not on the index and has no repository", fix="add 'repository'"
            )
        for value in entry.values:
            self._try((*path, "values", value), functools.partial(axis.parse, value), key=True)
        return axis

    def _stack(self, name: str, entry: schema.StackEntry) -> Stack:
        path: NodePath = ("stacks", name)
        axes = self._values((*path, "axes"), entry.axes)
        if entry.recipe:
            self._known((*path, "recipe"), "recipe", entry.recipe, self._names("recipes"))
        return Stack(
            name=name,
            title=entry.title,
            source=entry.source,
            axes={axis: str(version) for axis, version in axes.items()},
            recipe=entry.recipe or "",
            findings=self._findings(path, entry.findings),
            notes=tuple(entry.notes),
            provenance={axis: self.document.where((*path, "axes", axis)) for axis in axes},
            where=self.document.where(path, key=True),
        )

    def _findings(self, path: NodePath, entries: Sequence[schema.FindingEntry]) -> tuple[Finding, ...]:
        for index, entry in enumerate(entries):
            for position, axis in enumerate(entry.axes):
                self._known((*path, "findings", index, "axes", position), "axis", axis, self._names("axes"))
        return tuple(
            Finding(
                what=entry.what,
                source=entry.source,
                axes=tuple(entry.axes),
                where=self.document.where((*path, "findings", index)),
            )
            for index, entry in enumerate(entries)
        )

    def _table(self, name: str, entry: schema.TableEntry) -> Table:
        path: NodePath = ("published", name)
        if entry.key not in entry.columns:
            self._known((*path, "key"), "column", entry.key, entry.columns)
        seen: set[str] = set()
        for index, row in enumerate(entry.rows):
            if len(row) != len(entry.columns):
                self._problem(
                    (*path, "rows", index),
                    f"the row has {len(row)} fields, the table {len(entry.columns)} columns",
                    fix=f"columns: {', '.join(entry.columns)}; write null where the table says nothing",
                )
            elif entry.key in entry.columns:
                key = row[entry.columns.index(entry.key)]
                if key is not None and key in seen:
                    self._problem((*path, "rows", index), f"a second row for {key!r}", fix="keep one")
                seen.add(key or "")
        return Table(
            name=name,
            title=entry.title,
            source=entry.source,
            date=entry.date,
            key=entry.key,
            columns=tuple(entry.columns),
            rows=tuple(tuple(row) for row in entry.rows),
            where=self.document.where(path, key=True),
        )

    def _constraint(self, name: str, entry: schema.ConstraintEntry) -> Constraint:
        path: NodePath = ("constraints", name)
        rules: list[Requirement] = []
        for axis, rule in (entry.require or {}).items():
            at: NodePath = (*path, "require", axis)
            if isinstance(rule, schema.SameAs):
                both = self._known(at, "axis", axis, self._names("axes"), key=True)
                if self._known((*at, "same_as"), "axis", rule.same_as, self._names("axes")) and both:
                    rules.append(Agreement(axis=axis, other=rule.same_as, part=rule.part))
            elif isinstance(rule, schema.ListedIn):
                rules += self._listing(at, axis, rule)
            else:
                rules += self._conditions((*path, "require"), {axis: rule})
        return Constraint(
            id=name,
            when=self._conditions((*path, "when"), entry.when),
            require=tuple(rules),
            forbid=self._conditions((*path, "forbid"), entry.forbid or {}),
            reason=entry.reason,
            source=entry.source,
            where=self.document.where(path, key=True),
        )

    def _listing(self, path: NodePath, axis: str, rule: schema.ListedIn) -> list[Listing]:
        known = self._known(path, "axis", axis, self._names("axes"), key=True)
        if not self._known((*path, "table"), "table", rule.table, self._names("published")) or not known:
            return []
        table = self.tables.get(rule.table)
        if table is None or axis not in self.axes:
            return []
        column = rule.column or axis
        at: NodePath = (*path, "column") if rule.column else (*path, "table")
        where = self.document.where(("published", table.name, "key"))
        if table.key not in self.axes:
            self.problems.append(Problem(f"key {table.key!r} of table {table.name!r} is no axis", where))
            return []
        if not self._known(at, f"column of table {table.name!r}", column, table.columns):
            return []
        if any(len(row) != len(table.columns) for row in table.rows) or table.key not in table.columns:
            return []
        schemes = {name: known_axis.scheme for name, known_axis in self.axes.items()}
        listing = self._try(path, lambda: table_listing(table, axis, column, schemes))
        return [listing] if listing else []

    def _pin(
        self, path: NodePath, entry: schema.PinEntry | schema.OverrideEntry, template: str, field: str
    ) -> PinRule:
        axes = self._try((*path, field), lambda: _placeholders(template)) or ()
        for axis in axes:
            self._known((*path, field), "axis", axis, self._names("axes"))
        self._try((*path, field), lambda: _check_requirement(template, axes))
        return PinRule(
            when=self._conditions((*path, "when"), entry.when),
            template=template,
            reason=entry.reason,
            source=entry.source,
            axes=axes,
            where=self.document.where(path),
        )

    def _recipe(self, name: str, entry: schema.RecipeEntry) -> Recipe:
        path: NodePath = ("recipes", name)
        chain = self._bases(name)
        return Recipe(
            name=name,
            title=entry.title,
            kind=entry.kind,
            algorithm=entry.algorithm,
            entry=entry.entry,
            overrides={key: value for base in chain for key, value in base.overrides.items()},
            env={key: value for base in chain for key, value in base.env.items()},
            nodes=entry.nodes,
            cards=entry.cards,
            model=entry.model,
            source=entry.source,
            findings=self._findings(path, entry.findings),
            notes=tuple(entry.notes),
            where=self.document.where(path, key=True),
        )

    def _bases(self, name: str) -> list[schema.RecipeEntry]:
        chain: list[schema.RecipeEntry] = []
        seen: list[str] = []
        current: str | None = name
        while current is not None and current in self.model.recipes:
            if current in seen:
                self._problem(
                    ("recipes", name, "base"), f"recipes build on each other: {' -> '.join([*seen, current])}"
                )
                break
            seen.append(current)
            entry = self.model.recipes[current]
            chain.insert(0, entry)
            if entry.base:
                self._known(("recipes", current, "base"), "recipe", entry.base, self._names("recipes"))
            current = entry.base
        return chain

    def _profile(self, name: str, entry: schema.ProfileEntry) -> Profile:
        return Profile(
            name=name,
            title=entry.title,
            select=tuple(
                self._selection(("profiles", name, "select", index), part)
                for index, part in enumerate(entry.select)
            ),
            where=self.document.where(("profiles", name), key=True),
        )

    def _selection(self, path: NodePath, entry: schema.SelectEntry) -> Selection:
        stacks = tuple(entry.stacks)
        if stacks == ("all",):
            stacks = tuple(self.model.stacks)
        else:
            raw = self.document
            for index, stack in enumerate(stacks):
                at: NodePath = (*path, "stacks", index)
                self._known(
                    at if at in raw.values else at[:-1], "stack", stack, [*self._names("stacks"), "all"]
                )
        product: dict[str, tuple[str, ...]] = {}
        provenance: dict[tuple[str, str], Location] = {}
        for axis, texts in entry.product.items():
            at = (*path, "product", axis)
            if axis in entry.with_:
                self._problem(at, f"axis {axis!r} is in 'product' and in 'with'", fix="keep one", key=True)
            if not self._known(at, "axis", axis, self._names("axes"), key=True) or axis not in self.axes:
                continue
            values = [
                (self._try((*at, index), functools.partial(self.axes[axis].parse, text)), index)
                for index, text in enumerate(texts)
            ]
            for value, index in values:
                if value and (axis, str(value)) in provenance:
                    self._problem((*at, index), f"{value} is listed twice", fix="keep one")
                elif value:
                    provenance[axis, str(value)] = self.document.where((*at, index))
            product[axis] = tuple(dict.fromkeys(str(value) for value, _ in values if value))
        fixed = self._values((*path, "with"), entry.with_)
        for axis, version in fixed.items():
            provenance[axis, str(version)] = self.document.where((*path, "with", axis))
        if entry.recipe:
            self._known((*path, "recipe"), "recipe", entry.recipe, self._names("recipes"))
        return Selection(
            stacks=stacks,
            product=product,
            fixed={axis: str(version) for axis, version in fixed.items()},
            recipe=entry.recipe or "",
            provenance=provenance,
            where=self.document.where(path),
        )

    def _runner(self, name: str, entry: schema.RunnerEntry) -> Runner:
        return Runner(
            name=name,
            title=entry.title,
            kind=entry.kind,
            devices=tuple(entry.devices),
            labels=entry.labels,
            where=self.document.where(("runners", name), key=True),
        )

    def _expectation(self, name: str, entry: schema.ExpectationEntry) -> Expectation:
        path: NodePath = ("expectations", name)
        glob = entry.cells if isinstance(entry.cells, str) else ""
        conditions = {} if isinstance(entry.cells, str) else entry.cells
        date, version = self._until((*path, "until"), entry.until)
        return Expectation(
            id=name,
            cells=glob,
            conditions=self._conditions((*path, "cells"), conditions),
            check=entry.check,
            state=entry.state,
            reason=entry.reason,
            source=entry.source,
            owner=entry.owner,
            until_date=date,
            until_version=version,
            where=self.document.where(path, key=True),
        )

    def _until(self, path: NodePath, text: str) -> tuple[dt.date | None, Condition | None]:
        try:
            return dt.date.fromisoformat(text), None
        except ValueError:
            match = _UNTIL.fullmatch(text)
        if match is None:
            self._problem(path, f"{text!r} is no date and no condition", fix="2027-01-31, or 'verl >=0.7.0'")
            return None, None
        axis = match["axis"]
        if not self._known(path, "axis", axis, self._names("axes")) or axis not in self.axes:
            return None, None
        specifier = self._try(path, lambda: parse_specifier(self.axes[axis].scheme, match["specifier"]))
        return None, Condition(axis=axis, specifiers=(specifier,)) if specifier else None

    def _values(self, path: NodePath, texts: Mapping[str, str]) -> dict[str, Version]:
        values: dict[str, Version] = {}
        for axis, text in texts.items():
            if self._known((*path, axis), "axis", axis, self._names("axes"), key=True) and axis in self.axes:
                value = self._try((*path, axis), functools.partial(self.axes[axis].parse, text))
                if value:
                    values[axis] = value
        return values

    def _conditions(self, path: NodePath, texts: Mapping[str, Sequence[str]]) -> tuple[Condition, ...]:
        conditions = []
        for axis, options in texts.items():
            at: NodePath = (*path, axis)
            if not self._known(at, "axis", axis, self._names("axes"), key=True) or axis not in self.axes:
                continue
            specifiers = []
            for index, option in enumerate(options):
                place: NodePath = (*at, index) if (*at, index) in self.document.values else at
                specifier = self._try(place, functools.partial(self._specifier, axis, option))
                if specifier:
                    specifiers.append(specifier)
            if specifiers:
                conditions.append(Condition(axis=axis, specifiers=tuple(specifiers)))
        return tuple(conditions)

    def _specifier(self, axis: str, text: str) -> Specifier:
        specifier = parse_specifier(self.axes[axis].scheme, text)
        for clause in specifier.clauses:
            if clause.version is not None and self.axes[axis].values:
                self.axes[axis].parse(str(clause.version))
        return specifier

    def _names(self, section: str) -> Iterable[str]:
        """Names in the file, also of entries that are wrong themselves, so that one error is not two."""
        entries = self.document.data.get(section)
        return [str(name) for name in entries] if isinstance(entries, dict) else []

    def _known(
        self, path: NodePath, kind: str, name: str, known: Iterable[str], *, key: bool = False
    ) -> bool:
        if name in known:
            return True
        self._problem(path, f"unknown {kind} {name!r}", fix=did_you_mean(name, known), key=key)
        return False

    def _try(self, path: NodePath, parse: Callable[[], T], *, key: bool = False) -> T | None:
        try:
            return parse()
        except ValueError as error:
            axis = self.axes.get(str(path[-1])) if path else None
            fix = did_you_mean(str(error).split("'")[1], axis.values) if axis and axis.values else ""
            self._problem(path, str(error), fix=fix, key=key)
            return None

    def _problem(self, path: NodePath, what: str, *, fix: str = "", key: bool = False) -> None:
        self.problems.append(Problem(what, self.document.where(path, key=key), fix=fix))


def _placeholders(template: str) -> tuple[str, ...]:
    fields = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            raise ValueError(f"{{{name}}} is not a plain axis name")
        fields.append(name)
    return tuple(dict.fromkeys(fields))


def _check_requirement(template: str, axes: Sequence[str]) -> None:
    from packaging.requirements import InvalidRequirement
    from packaging.requirements import Requirement as PackageRequirement

    text = template.format_map(dict.fromkeys(axes, "1.0"))
    try:
        PackageRequirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"{template!r} is not a requirement: {str(error).splitlines()[0]}") from error
