"""Reads matrix.yaml: its form, then what its names and versions refer to; all problems at once."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location, Problem
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
from harness.matrix.form import checked
from harness.matrix.matrix import Matrix
from harness.matrix.migrations import read_migration
from harness.matrix.model import (
    Axis,
    Expectation,
    LeftOut,
    PinRule,
    Profile,
    Recipe,
    Runner,
    Selection,
    Stack,
)
from harness.matrix.pins import check_template, placeholders
from harness.matrix.resolve import Resolver, mapping, text, texts
from harness.matrix.versions import Scheme
from harness.matrix.yaml_positions import Document, NodePath, load_yaml, parse_yaml

MAX_PROBLEMS = 100
_UNTIL = re.compile(r"(?P<axis>[a-z][a-z0-9_]*)\s+(?P<specifier>\S.*)")
Entry = dict[str, Any]


def load_matrix(path: Path) -> Matrix:
    """The matrix in the file; InputError holds every problem found, each with file, line and column."""
    return _load(load_yaml(path))


def parse_matrix(source: str, file: Path | str = "matrix.yaml") -> Matrix:
    """The matrix in the text `source`; `file` names it in errors."""
    return _load(parse_yaml(source, file))


def _load(document: Document) -> Matrix:
    data, problems = checked(document)
    problems = sorted([*document.problems, *problems], key=_position)
    if data is None:
        raise InputError.of(problems[:MAX_PROBLEMS])
    loader = _Loader(document)
    matrix = loader.matrix(data)
    problems = sorted([*problems, *loader.problems], key=_position)
    if problems:
        raise InputError.of(problems[:MAX_PROBLEMS])
    return matrix


def _position(problem: Problem) -> tuple[int, int]:
    return (problem.where.line, problem.where.column) if problem.where else (0, 0)


class _Loader(Resolver):
    """Builds the model from data whose form has been checked (see `schema`)."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.tables: dict[str, Table] = {}

    def matrix(self, data: Entry) -> Matrix:
        """All of the file, in its order."""
        # Axes and tables come first: the others are read with them.
        for name, entry in data["axes"].items():
            self.axes[name] = self._axis(name, entry)
        for name, entry in data.get("published", {}).items():
            self.tables[name] = self._table(name, entry)
        recipes = data.get("recipes", {})
        stacks = {name: self._stack(name, entry) for name, entry in data.get("stacks", {}).items()}
        pins, overrides = data.get("pins", []), data.get("overrides", [])
        matrix = Matrix(
            file=self.document.file,
            axes=self.axes,
            stacks=stacks,
            published=self.tables,
            constraints={
                name: self._constraint(name, entry) for name, entry in data.get("constraints", {}).items()
            },
            pin_rules=tuple(self._rule(("pins", index), entry) for index, entry in enumerate(pins)),
            override_rules=tuple(
                self._rule(("overrides", index), entry) for index, entry in enumerate(overrides)
            ),
            recipes={name: self._recipe(name, recipes) for name in recipes},
            profiles={
                name: self._profile(name, entry, list(stacks)) for name, entry in data["profiles"].items()
            },
            runners={name: self._runner(name, entry) for name, entry in data.get("runners", {}).items()},
            expectations={
                name: self._expectation(name, entry) for name, entry in data.get("expectations", {}).items()
            },
            migrations={
                name: read_migration(self, name, entry) for name, entry in data.get("migrations", {}).items()
            },
        )
        return matrix.moved({})

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
            tag=text(entry.get("tag", "")),
            build_env=mapping(entry.get("build_env")),
            extra_index=tuple(texts(entry.get("extra_index", []))),
            values={value: mapping(facts) for value, facts in entry.get("values", {}).items()},
            where=self.document.where(path, key=True),
        )
        if axis.tag and (self.attempt((*path, "tag"), lambda: placeholders(axis.tag)) or ()) != ("version",):
            self.problem(
                (*path, "tag"), f"tag {axis.tag!r} must contain {{version}}", fix="such as v{version}"
            )
        if axis.package and not axis.on_index and not axis.repository:
            self.problem(path, f"axis {name!r} is on no index and has no repository", fix="add 'repository:'")
        for value in axis.values:
            version = self.attempt((*path, "values", value), functools.partial(axis.parse, value), key=True)
            if version is not None and str(version) != value:
                self.problem((*path, "values", value), f"write {value!r} as {version}", key=True)
        return axis

    def _stack(self, name: str, entry: Entry) -> Stack:
        path: NodePath = ("stacks", name)
        axes = self.values((*path, "axes"), entry["axes"])
        return Stack(
            name=name,
            title=text(entry["title"]),
            source=text(entry["source"]),
            axes={axis: str(version) for axis, version in axes.items()},
            recipe=self._recipe_name(path, entry),
            findings=self._findings(path, entry),
            notes=tuple(texts(entry.get("notes", []))),
            provenance={axis: self.document.where((*path, "axes", axis)) for axis in axes},
            where=self.document.where(path, key=True),
        )

    def _recipe_name(self, path: NodePath, entry: Entry) -> str:
        name = entry.get("recipe", "")
        if name:
            self.known((*path, "recipe"), "recipe", name, self.names("recipes"))
        return str(name)

    def _findings(self, path: NodePath, entry: Entry) -> tuple[Finding, ...]:
        found = []
        for index, finding in enumerate(entry.get("findings", [])):
            at: NodePath = (*path, "findings", index)
            axes = finding.get("axes", [])
            for position, axis in enumerate(axes):
                self.axis((*at, "axes", position), axis)
            what, source = text(finding["what"]), text(finding["source"])
            found.append(Finding(what=what, source=source, axes=tuple(axes), where=self.document.where(at)))
        return tuple(found)

    def _table(self, name: str, entry: Entry) -> Table:
        path: NodePath = ("published", name)
        table = Table(
            name=name,
            title=text(entry["title"]),
            source=text(entry["source"]),
            date=text(entry["date"]),
            key=entry["key"],
            columns=tuple(texts(entry["columns"])),
            rows=tuple(tuple(None if cell is None else text(cell) for cell in row) for row in entry["rows"]),
            where=self.document.where(path, key=True),
        )
        if not self.known((*path, "key"), "column", table.key, table.columns):
            return table
        seen: set[str | None] = set()
        for index, row in enumerate(table.rows):
            at: NodePath = (*path, "rows", index)
            if len(row) != len(table.columns):
                what = f"the row has {len(row)} fields, the table {len(table.columns)} columns"
                self.problem(at, what, fix=f"columns: {', '.join(table.columns)}; null where nothing is said")
                continue
            key = row[table.columns.index(table.key)]
            if key in seen or key is None:
                self.problem(at, f"a second row for {key!r}" if key else f"the row has no {table.key}")
            seen.add(key)
        return table

    def _constraint(self, name: str, entry: Entry) -> Constraint:
        path: NodePath = ("constraints", name)
        if ("require" in entry) == ("forbid" in entry):
            self.problem(path, f"constraint {name!r} needs one of 'require' and 'forbid'", key=True)
        return Constraint(
            id=name,
            when=self.conditions((*path, "when"), entry.get("when")),
            require=tuple(
                rule
                for axis, rule_entry in entry.get("require", {}).items()
                for rule in self._requirement((*path, "require"), axis, rule_entry)
            ),
            forbid=self.conditions((*path, "forbid"), entry.get("forbid")),
            reason=text(entry["reason"]),
            source=text(entry["source"]),
            where=self.document.where(path, key=True),
        )

    def _requirement(self, path: NodePath, axis: str, entry: Any) -> Sequence[Requirement]:
        if not isinstance(entry, dict):
            return self.conditions(path, {axis: entry})
        at: NodePath = (*path, axis)
        known = self.axis(at, axis, key=True)
        if "same_as" in entry:
            other = self.axis((*at, "same_as"), entry["same_as"])
            part = entry.get("part", "nominal")
            return [Agreement(axis=axis, other=other.name, part=part)] if known and other else []
        return self._listing(at, known, entry) if known else []

    def _listing(self, path: NodePath, axis: Axis, entry: Entry) -> list[Listing]:
        name = entry["table"]
        if (
            not self.known((*path, "table"), "table", name, self.names("published"))
            or name not in self.tables
        ):
            return []
        table, column = self.tables[name], entry.get("column", axis.name)
        at: NodePath = (*path, "column") if "column" in entry else (*path, "table")
        if not self.known(at, f"column of table {name!r}", column, table.columns):
            return []
        if table.key not in table.columns or any(len(row) != len(table.columns) for row in table.rows):
            return []
        if self.axis(("published", name, "key"), table.key) is None:
            return []
        schemes = {known.name: known.scheme for known in self.axes.values()}
        listing = self.attempt(path, lambda: table_listing(table, axis.name, column, schemes))
        return [listing] if listing else []

    def _rule(self, path: NodePath, entry: Entry) -> PinRule:
        field = "require" if "require" in entry else "override"
        template = text(entry[field])
        axes = self.attempt((*path, field), lambda: placeholders(template))
        for axis in axes or ():
            self.axis((*path, field), axis)
        if axes is not None:
            self.attempt((*path, field), lambda: check_template(template, axes))
        return PinRule(
            when=self.conditions((*path, "when"), entry.get("when")),
            template=template,
            reason=text(entry["reason"]),
            source=text(entry["source"]),
            axes=axes or (),
            where=self.document.where(path),
        )

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
        """The recipes it builds on, the nearest first."""
        chain = [name]
        while base := recipes[chain[-1]].get("base"):
            at: NodePath = ("recipes", chain[-1], "base")
            if base in chain:
                if name == chain[-1]:
                    self.problem(at, f"recipes build on each other: {' -> '.join([*chain, base])}")
                break
            if not self.known(at, "recipe", base, self.names("recipes")) or base not in recipes:
                break
            chain.append(base)
        return chain[1:]

    def _profile(self, name: str, entry: Entry, stacks: list[str]) -> Profile:
        path: NodePath = ("profiles", name, "select")
        parts = enumerate(entry["select"])
        return Profile(
            name=name,
            title=text(entry["title"]),
            select=tuple(self._selection((*path, index), part, stacks) for index, part in parts),
            without=tuple(self._left_out(name, *item) for item in entry.get("without", {}).items()),
            where=self.document.where(("profiles", name), key=True),
        )

    def _left_out(self, profile: str, check: str, reason: Any) -> LeftOut:
        where = self.document.where(("profiles", profile, "without", check), key=True)
        return LeftOut(check=check, reason=text(reason), where=where)

    def _selection(self, path: NodePath, entry: Entry, stacks: list[str]) -> Selection:
        if ("stacks" in entry) == ("product" in entry):
            self.problem(path, "a selection needs one of 'stacks' and 'product'")
        if "stacks" in entry and ("with" in entry or "recipe" in entry):
            self.problem(path, "'with' and 'recipe' belong to 'product'; stacks bring their own")
        wanted = entry.get("stacks", [])
        for index, stack in enumerate(wanted if isinstance(wanted, list) else []):
            self.known((*path, "stacks", index), "stack", stack, self.names("stacks"))
        if isinstance(wanted, str) and wanted != "all":
            self.problem((*path, "stacks"), f"'stacks' is a list or all, not {wanted!r}", fix=f"[{wanted}]")
        product, provenance = self._product((*path, "product"), entry)
        fixed = self.values((*path, "with"), entry.get("with"))
        for axis, version in fixed.items():
            provenance[axis, str(version)] = self.document.where((*path, "with", axis))
            if axis in product:
                self.problem((*path, "with", axis), f"{axis!r} is in 'product' and in 'with'", fix="keep one")
        return Selection(
            stacks=tuple(stacks if wanted == "all" else texts(wanted)),
            product=product,
            fixed={axis: str(version) for axis, version in fixed.items()},
            recipe=self._recipe_name(path, entry),
            provenance=provenance,
            where=self.document.where(path),
        )

    def _product(
        self, path: NodePath, entry: Entry
    ) -> tuple[dict[str, tuple[str, ...]], dict[tuple[str, str], Location]]:
        product: dict[str, tuple[str, ...]] = {}
        provenance: dict[tuple[str, str], Location] = {}
        for name, words in entry.get("product", {}).items():
            axis = self.axis((*path, name), name, key=True)
            if axis is None:
                continue
            for index, word in enumerate(texts(words)):
                version = self.value((*path, name, index), axis, word)
                if version is not None and (name, str(version)) in provenance:
                    self.problem((*path, name, index), f"{version} is listed twice", fix="keep one")
                elif version is not None:
                    provenance[name, str(version)] = self.document.where((*path, name, index))
            product[name] = tuple(value for axis_name, value in provenance if axis_name == name)
        return product, provenance

    def _runner(self, name: str, entry: Entry) -> Runner:
        return Runner(
            name=name,
            title=text(entry["title"]),
            kind=entry["kind"],
            devices=tuple(entry["devices"]),
            labels=mapping(entry.get("labels")),
            where=self.document.where(("runners", name), key=True),
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
            because=tuple(text(word) for word in entry.get("because", ())),
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
            self.problem(path, f"{word!r} is no date and no condition", fix="2027-01-31, or 'verl >=0.7.0'")
            return None, None
        axis = self.axis(path, match["axis"])
        specifier = self.specifier(path, axis, match["specifier"]) if axis else None
        if axis is None or specifier is None:
            return None, None
        return None, Condition(axis=axis.name, specifiers=(specifier,))
