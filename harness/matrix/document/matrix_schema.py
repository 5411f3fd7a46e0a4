"""The form of matrix.yaml: strict models at the file's edge, and the JSON schema editors complete from."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$"
AXIS_PATTERN = r"^[a-z][a-z0-9_]{0,40}$"
ONE_LINE = r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"


def _as_text(value: Any) -> Any:
    # An unquoted 9 is an integer in YAML; what was written is what is meant.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | bool | None):
        return value
    raise ValueError(f"must be text, a whole number, true, false or null, not {_kind(value)}")


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", type(None): "empty"}.get(type(value), f"{value!r}")


def _one_line(value: str) -> str:
    # It stands in terminals, comments of exports and commands to a CI's runner.
    if re.search(ONE_LINE, value) is None or value.endswith("\n"):
        raise ValueError("must be one line, without control characters")
    return value


def _form(value: Any) -> str:
    if isinstance(value, dict):
        return "same" if "same_as" in value else "listed"
    return "specifiers"


_WORD: dict[str, Any] = {"type": ["string", "number"], "minLength": 1, "maxLength": 2000}

# Editors read an unquoted 8.10 as a number; the loader keeps its text, so both are right.
Text = Annotated[
    str,
    BeforeValidator(_as_text),
    Field(min_length=1, max_length=2000),
    WithJsonSchema(_WORD),
]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
AxisName = Annotated[str, Field(pattern=AXIS_PATTERN)]
Specifiers = Annotated[
    list[Text],
    BeforeValidator(_as_list),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                _WORD,
                {"type": "array", "items": _WORD, "minItems": 1},
            ],
            "description": "'>=8.3.RC1,<9', '2.7.*', '*', or a list of which one must hold",
        }
    ),
]
Title = Annotated[
    Text,
    AfterValidator(_one_line),
    WithJsonSchema({**_WORD, "pattern": ONE_LINE}),
    Field(description="what people call it, in a few words"),
]
Reason = Annotated[Text, Field(description="why, in a sentence or two")]
Source = Annotated[Text, Field(description="who says so: a document, a page, a file at a commit")]
Owner = Annotated[Text, Field(description="who looks after it")]
Plain = Annotated[
    Any, AfterValidator(_plain), WithJsonSchema({"type": ["string", "number", "boolean", "null"]})
]
Conditions = dict[AxisName, Specifiers]
When = Annotated[Conditions, Field(description="axis: versions; the cells it is for. Empty: all")]


class MatrixEntry(BaseModel):
    """Base of all: unknown keys are errors, nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class AxisEntry(MatrixEntry):
    """One versioned part of the stack."""

    title: Title
    scheme: Literal["pep440", "cann", "python", "name"] = Field(description="how its versions are ordered")
    source: Text = Field(description="where its versions are published")
    package: Text = Field("", description="distribution name, when it is installed with pip")
    on_index: bool = Field(True, description="false: releases are not on the package index, only in git")
    repository: Text = Field("", description="git repository of its source")
    tag: Text = Field("", description="its release tags, such as 'v{version}'")
    build_env: dict[str, Text] = Field({}, description="environment variables its installation needs")
    extra_index: list[Text] = Field([], description="package indexes that hold versions the main one lacks")
    values: dict[str, dict[str, Text]] = Field(
        {}, description="the only values allowed, each with facts about it; empty: any version"
    )


class FindingEntry(MatrixEntry):
    """A known inconsistency of what the authors state."""

    what: Text = Field(description="what does not agree, in a sentence")
    source: Source
    axes: list[AxisName] = Field([], description="the axes it concerns")


class StackEntry(MatrixEntry):
    """A named cell people talk about, as its authors state it."""

    title: Title
    source: Source
    axes: dict[AxisName, Text] = Field(min_length=1, description="axis: the version its authors state")
    recipe: Name = Field("", description="the recipe its authors run")
    findings: list[FindingEntry] = Field([], description="what its authors state does not agree")
    notes: list[Text] = Field([], description="what else a reader has to know")


class TableEntry(MatrixEntry):
    """A table somebody publishes: facts with their source, never outcomes."""

    title: Title
    source: Source
    date: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="when it was read")]
    key: AxisName = Field(description="the column by which rows are looked up; it is named after an axis")
    columns: list[Text] = Field(min_length=2, description="names of the columns, axes among them")
    rows: list[list[Text | None]] = Field(min_length=1, description="a value for each column; null: none")


class SameAsEntry(MatrixEntry):
    """The value must agree with that of another axis."""

    same_as: AxisName = Field(description="the other axis")
    part: Literal["release", "nominal"] = Field(
        "nominal", description="what must agree: 2.7.1 of 2.7.1.post1, or the version as it is named"
    )


class ListedInEntry(MatrixEntry):
    """The value must be the one a published table has for the cell's value of the table's key."""

    table: Name = Field(description="an entry of `published`")
    column: Text = Field("", description="default: the column named like the axis")


Requirement = Annotated[
    Annotated[Specifiers, Tag("specifiers")]
    | Annotated[SameAsEntry, Tag("same")]
    | Annotated[ListedInEntry, Tag("listed")],
    Discriminator(_form),
]


class ConstraintEntry(MatrixEntry):
    """Which combinations are out, and the proof of it."""

    when: When = {}
    require: dict[AxisName, Requirement] = Field({}, description="axis: what its value must be")
    forbid: Conditions = Field({}, description="axis: versions that must not come together; not with require")
    reason: Reason
    source: Source


class PinEntry(MatrixEntry):
    """A requirement that cells need beside their axis values; `{axis}` stands for the cell's value."""

    when: When = {}
    require: Text = Field(description="as pip takes it, such as `numpy<2`")
    reason: Reason
    source: Source


class OverrideEntry(MatrixEntry):
    """A requirement that replaces what packages ask for; `{axis}` stands for the cell's value."""

    when: When = {}
    override: Text = Field(description="as pip takes it; what packages ask for of the same name is ignored")
    reason: Reason
    source: Source


class RecipeEntry(MatrixEntry):
    """A training or inference job."""

    title: Title
    kind: Literal["train", "infer"] = Field("train", description="what the job does")
    algorithm: Text = Field(description="such as grpo or gspo")
    entry: Text = Field(description="the Python module or the script that is started")
    base: Name = Field("", description="a recipe whose overrides and env come first")
    overrides: dict[str, Plain] = Field({}, description="verl's settings, as on its command line")
    env: dict[str, Text] = Field({}, description="environment variables of the job")
    nodes: int = Field(1, ge=1, le=10_000, description="machines of the job")
    cards: int = Field(1, ge=1, le=1024, description="cards of each node")
    model: Text = Field(description="the model that is trained or run")
    source: Source
    findings: list[FindingEntry] = Field([], description="what its authors state does not agree")
    notes: list[Text] = Field([], description="what else a reader has to know")


class SelectEntry(MatrixEntry):
    """Cells of a profile: named stacks, or the product of axis values."""

    stacks: Annotated[
        list[Name],
        BeforeValidator(_as_list),
        Field(min_length=1),
        WithJsonSchema(
            {
                "anyOf": [
                    {"const": "all"},
                    {"type": "array", "items": {"type": "string", "pattern": NAME_PATTERN}, "minItems": 1},
                ]
            }
        ),
    ] = Field([], description="names of stacks, or all")
    product: dict[AxisName, Annotated[list[Text], Field(min_length=1)]] = Field(
        {}, description="axis: versions; every combination that the constraints let through"
    )
    with_: dict[AxisName, Text] = Field({}, alias="with", description="axis: the version all of them have")
    recipe: Name = Field("", description="the recipe of these cells")


class ProfileEntry(MatrixEntry):
    """What one command plans."""

    title: Title
    select: list[SelectEntry] = Field(min_length=1, description="its cells, taken together")
    without: dict[Name, Text] = Field({}, description="checks this profile leaves out, each with the reason")


class RunnerEntry(MatrixEntry):
    """A place that can execute tasks."""

    title: Title
    kind: Literal["local", "ray"] = Field(description="this machine, or a Ray cluster")
    devices: list[Literal["sim", "npu", "cpu"]] = Field(min_length=1, description="devices cells find there")
    labels: dict[str, Text] = Field({}, description="facts about it; in capitals, folders such as DATA_ROOT")


class ExpectationEntry(MatrixEntry):
    """An outcome that is known to differ from pass, and until when."""

    cells: Annotated[str, Tag("glob")] | Annotated[Conditions, Tag("axes")] = Field(
        discriminator=Discriminator(lambda value: "axes" if isinstance(value, dict) else "glob"),
        description="a pattern of cell ids, or axis: versions",
    )
    check: Text = Field(description="the check that is known not to pass")
    state: Literal["fail", "numeric-drift", "timeout", "crash", "inconclusive", "unsupported", "error"] = (
        Field(description="how it ends; another end is a new failure")
    )
    because: list[Text] = Field(
        [],
        description="texts; each reason of the failure has to contain one of them, else it is a new failure",
    )
    reason: Reason
    source: Source
    owner: Owner
    until: Text = Field(description="a date, 2027-01-31, or an axis and a specifier, 'verl >=0.7.0'")


class MigrationEntry(MatrixEntry):
    """A version bump: the row and the one it moves to are both planned until the new one is green."""

    stack: Name = Field(description="the row it moves")
    title: Title
    to: dict[AxisName, Text] = Field(
        min_length=1,
        description="axis: value; `0.10.0.dev0@main` is the commit main is at when it is planned",
    )
    reason: Reason
    source: Source
    owner: Owner
    until: Text = Field(description="when it should be done: a date, 2027-01-31")


class MatrixFile(MatrixEntry):
    """matrix.yaml: the version matrix of npu-matrix."""

    format: Literal[1] = Field(description="the form of this file")
    axes: dict[AxisName, AxisEntry] = Field(min_length=1, description="the versioned parts of a cell")
    stacks: dict[Name, StackEntry] = Field({}, description="named cells, as their authors state them")
    published: dict[Name, TableEntry] = Field({}, description="tables of versions that somebody publishes")
    constraints: dict[Name, ConstraintEntry] = Field(
        {}, description="which combinations are out, with the proof"
    )
    pins: list[PinEntry] = Field([], description="requirements beside those of the axes")
    overrides: list[OverrideEntry] = Field([], description="requirements that replace what packages ask for")
    recipes: dict[Name, RecipeEntry] = Field({}, description="training and inference jobs")
    profiles: dict[Name, ProfileEntry] = Field(min_length=1, description="what one command plans")
    runners: dict[Name, RunnerEntry] = Field({}, description="places that can execute tasks")
    expectations: dict[Name, ExpectationEntry] = Field({}, description="failures that are known, until when")
    migrations: dict[Name, MigrationEntry] = Field({}, description="version bumps of stacks")


def json_schema() -> dict[str, Any]:
    """The JSON schema of matrix.yaml, as it is committed (see `form.SCHEMA_FILE`)."""
    schema = MatrixFile.model_json_schema(by_alias=True)
    _close(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _close(node: Any) -> None:
    # The models refuse keys that do not match; pydantic leaves that out of the schema.
    for below in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _close(below)
    if isinstance(node, dict) and "patternProperties" in node:
        node["additionalProperties"] = False
