"""The schema of matrix.yaml: strict pydantic models, and the JSON schema that editors use for completion."""

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
from pydantic.json_schema import JsonSchemaValue

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$"
AXIS_PATTERN = r"^[a-z][a-z0-9_]{0,40}$"
# A line of an allowed-signers file (ssh-keygen(1)) without principals: options, type, key, comment.
PUBLIC_KEY = (
    r'^((valid-after|valid-before)="[0-9]{8}([0-9]{4}([0-9]{2})?)?Z?"'
    r'(,(valid-after|valid-before)="[0-9]{8}([0-9]{4}([0-9]{2})?)?Z?")? )?'
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
    r" [A-Za-z0-9+/]{16,4000}={0,3}( [ -~]{0,200})?$"
)
NAMESPACE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9@._/-]{0,99}$"
DATE_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
ONE_LINE = r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"


def _as_text(value: Any) -> Any:
    # YAML reads an unquoted 9 as an integer; a version is always text.
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
    # The text is printed in terminals, in comments of exported files and in CI runner commands.
    if re.search(ONE_LINE, value) is None or value.endswith("\n"):
        raise ValueError("must be one line, without control characters")
    return value


def _form(value: Any) -> str:
    if isinstance(value, dict):
        return "same" if "same_as" in value else "listed"
    return "specifiers"


_WORD: JsonSchemaValue = {"type": ["string", "number"], "minLength": 1, "maxLength": 2000}

# Editors read an unquoted 8.10 as a number, the loader keeps its text; both types are accepted.
Text = Annotated[
    str,
    BeforeValidator(_as_text),
    Field(min_length=1, max_length=2000),
    WithJsonSchema(_WORD),
]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
AxisName = Annotated[str, Field(pattern=AXIS_PATTERN)]
_TEXTS: JsonSchemaValue = {"anyOf": [_WORD, {"type": "array", "items": _WORD, "minItems": 1}]}
Specifiers = Annotated[
    list[Text],
    BeforeValidator(_as_list),
    Field(min_length=1),
    WithJsonSchema(
        {
            **_TEXTS,
            "description": "A version specifier such as '>=8.3.RC1,<9', '2.7.*' or '*', or a list of "
            "specifiers of which at least one must match",
        }
    ),
]
Title = Annotated[
    Text,
    AfterValidator(_one_line),
    WithJsonSchema({**_WORD, "pattern": ONE_LINE}),
    Field(description="Short name for display"),
]
Reason = Annotated[Text, Field(description="The reason, in one or two sentences")]
Source = Annotated[
    Text, Field(description="Where this is documented: a document, a web page, or a file at a commit")
]
Owner = Annotated[Text, Field(description="The person or team responsible for this entry")]
Plain = Annotated[
    Any, AfterValidator(_plain), WithJsonSchema({"type": ["string", "number", "boolean", "null"]})
]
Conditions = dict[AxisName, Specifiers]
When = Annotated[
    Conditions,
    Field(
        description="Mapping of axis to version specifiers: the cells this entry applies to. Empty: all cells"
    ),
]


class MatrixEntry(BaseModel):
    """Base class of all entries: unknown keys are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class RepositoryAddress(MatrixEntry):
    """Another address of a repository, for hosts from which the first one is not reachable."""

    address: Text = Field(description="Address of the git repository, without credentials")
    source: Source


class WheelVariantsEntry(MatrixEntry):
    """Wheels of one release for several kinds of NPU (wheel variants, PEP 817)."""

    index: Text = Field(description="The index that has the variants; `advise` reads it")
    plain_for: list[Text] = Field(
        min_length=1, description="The values of the axis `soc` that wheels without a variant are built for"
    )
    source: Source


class AxisEntry(MatrixEntry):
    """One versioned component of the stack."""

    title: Title
    scheme: Literal["pep440", "cann", "python", "name"] = Field(
        description="How versions of this axis are written and ordered"
    )
    source: Text = Field(description="Where versions of this axis are published")
    package: Text = Field("", description="Name of the distribution, if it is installed with pip")
    on_index: bool = Field(
        True, description="False if releases are not on the package index but only in the git repository"
    )
    repository: Text = Field("", description="Git repository with the source code")
    alternatives: list[RepositoryAddress] = Field(
        [], description="Other addresses of the same repository, in the order in which they are tried"
    )
    tag: Text = Field("", description="Pattern of the release tags, such as 'v{version}'")
    build_env: dict[str, Text] = Field({}, description="Environment variables required for the installation")
    variants: WheelVariantsEntry | None = Field(
        None, description="Where wheels of the package for several kinds of NPU are"
    )
    extra_index: list[Text] = Field(
        [],
        description="Additional package indexes, searched for versions that the main index lacks and that a "
        "published table lists or that are development builds",
    )
    host: Specifiers = Field(
        [],
        description="For the axis `python`: the versions that `host` can mean. If another one runs "
        "npu-matrix, `host` means the newest of these that this machine has",
    )
    values: dict[str, dict[str, Text]] = Field(
        {}, description="The allowed values, each with facts about it. Empty: any version is allowed"
    )


class FindingEntry(MatrixEntry):
    """A known inconsistency in what the authors of a stack or recipe publish."""

    what: Text = Field(description="The inconsistency, in one sentence")
    source: Source
    axes: list[AxisName] = Field([], description="The axes that the inconsistency concerns")


class FailureEntry(MatrixEntry):
    """A failure that users of a stack see, and the cause that `npu-matrix triage` must name for it."""

    logs: list[Text] = Field(
        min_length=1, description="The lines of a log that show it: one text for each wording"
    )
    cause: Text = Field(description="The id of the cause, as `npu-matrix triage` prints it")
    source: Source


class StackEntry(MatrixEntry):
    """A named set of versions, as its authors publish it."""

    title: Title
    source: Source
    axes: dict[AxisName, Text] = Field(
        min_length=1, description="Mapping of axis to the version that the authors publish"
    )
    recipe: Name = Field("", description="The recipe that the authors run on this stack")
    findings: list[FindingEntry] = Field([], description="Known inconsistencies in what the authors publish")
    notes: list[Text] = Field([], description="Further notes for readers")
    failures: list[FailureEntry] = Field(
        [], description="Failures that users see, which `npu-matrix triage --stack` must explain"
    )
    failures_of: list[Name] = Field(
        [],
        description="Other stacks whose `failures` users of this stack see too, for example those with the "
        "same versions",
    )
    no_failures: Text = Field(
        "", description="Only without failures: where reports of failures were looked for, and when"
    )


class FollowEntry(MatrixEntry):
    """Where `matrix follow` finds new rows: a document of a repository, or the metadata of releases."""

    axis: AxisName = Field(description="The axis whose repository has the document, or whose package is read")
    document: Text = Field(
        "",
        description="Path of the document in the repository. Default: the metadata of the package's releases",
    )
    headers: dict[Text, Text] = Field(
        {},
        description="Mapping of column to its header in the document, or with `each_release` to the name in "
        "the first column. Columns with the same header share its field, which has a part for each, "
        "separated by /",
    )
    each_release: bool = Field(
        False, description="The document at the tag of each release is one row of this table"
    )
    adds: Literal["stack", "migration"] | None = Field(
        None, description="What a row of a new final release leads to. Default: nothing but the row"
    )


class TableEntry(MatrixEntry):
    """A published compatibility table, with its source. It contains no outcomes of npu-matrix."""

    title: Title
    source: Source
    date: Annotated[
        str,
        Field(pattern=DATE_PATTERN, description="The date on which the table was read"),
    ]
    key: AxisName = Field(description="The column by which rows are looked up; its name is an axis")
    columns: list[Text] = Field(
        min_length=2, description="Names of the columns; a column named after an axis contains its versions"
    )
    rows: list[list[Text | None]] = Field(
        min_length=1, description="One list per row with a value for each column; null: no value"
    )
    follow: FollowEntry | None = Field(None, description="Where `npu-matrix matrix follow` finds new rows")


class SameAsEntry(MatrixEntry):
    """The value must be equal to the value of another axis."""

    same_as: AxisName = Field(description="The axis to compare with")
    part: Literal["minor", "release", "nominal"] = Field(
        "nominal",
        description="What is compared: the minor release (2.7 of 2.7.1.post1), the release (2.7.1) or the "
        "whole version",
    )


class ListedInEntry(MatrixEntry):
    """The value must be the one that a published table lists for the cell's value of the key column."""

    table: Name = Field(description="Name of an entry of `published`")
    column: Text = Field("", description="Name of the column. Default: the column named after the axis")
    part: Literal["minor", "later-build", "nominal"] = Field(
        "nominal",
        description="What must match: the minor release (2.7 of 2.7.1), the release with the listed or a "
        "later build (2.7.1.post2 where 2.7.1.post1 is listed), or the whole version",
    )


Requirement = Annotated[
    Annotated[Specifiers, Tag("specifiers")]
    | Annotated[SameAsEntry, Tag("same")]
    | Annotated[ListedInEntry, Tag("listed")],
    Discriminator(_form),
]


class ConstraintEntry(MatrixEntry):
    """A rule that excludes combinations of versions, with its source."""

    when: When = {}
    require: dict[AxisName, Requirement] = Field(
        {}, description="Mapping of axis to the requirement on its value"
    )
    forbid: Conditions = Field(
        {},
        description="Mapping of axis to versions that must not be "
        "combined. Mutually exclusive with `require`",
    )
    kind: Literal["incompatible", "requirement", "unlisted"] = Field(
        "incompatible",
        description="What a violation means. `incompatible`: the versions do not work together. "
        "`requirement`: the metadata of a package excludes the version, unless an entry of `overrides` "
        "replaces that requirement. `unlisted`: a compatibility table does not list the combination, which "
        "may work nevertheless; the check `constraints` shows it beside a pass",
    )
    reason: Reason
    source: Source


class PinEntry(MatrixEntry):
    """A package requirement in addition to the axis values; `{axis}` is replaced by the cell's value."""

    when: When = {}
    require: Text = Field(description="A requirement in pip syntax, such as `numpy<2`")
    reason: Reason
    source: Source


class OverrideEntry(MatrixEntry):
    """A requirement that replaces those of one package; `{axis}` is replaced by the cell's value."""

    when: dict[AxisName, Requirement] = Field(
        {},
        description="Mapping of axis to the versions of the cells this entry applies to, or to the published "
        "table that must list the cell's version. Empty: all cells",
    )
    of: Text | list[Text] = Field(
        description="The package whose requirement is replaced, or several. Requirements of all other "
        "packages stay in force"
    )
    override: Text = Field(
        "",
        description="A requirement in pip syntax, used instead of what the package `of` requires of the "
        "same package. A bare name such as `torch` allows every version",
    )
    yields_to: Text = Field(
        "",
        description="Instead of `override`: a package that is installed after `of`. Its requirements replace "
        "those of `of` that contradict them",
    )
    reason: Reason
    source: Source


class RecipeEntry(MatrixEntry):
    """A training or inference job."""

    title: Title
    kind: Literal["train", "infer"] = Field("train", description="Whether the job trains or only infers")
    algorithm: Text = Field(description="The RL algorithm, such as grpo or gspo")
    entry: Text = Field(description="The Python module or script that is started")
    base: Name = Field("", description="A recipe whose overrides and environment this recipe extends")
    overrides: dict[str, Plain] = Field(
        {}, description="Configuration overrides of verl, as on its command line"
    )
    env: dict[str, Text] = Field({}, description="Environment variables of the job")
    nodes: int = Field(1, ge=1, le=10_000, description="Number of nodes of the job")
    cards: int = Field(1, ge=1, le=1024, description="Number of cards per node")
    model: Text = Field(description="The model that is trained or run")
    source: Source
    findings: list[FindingEntry] = Field([], description="Known inconsistencies in what the authors publish")
    notes: list[Text] = Field([], description="Further notes for readers")


class SelectEntry(MatrixEntry):
    """Cells of a profile: named stacks, or a product of axis values."""

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
    ] = Field([], description="Names of stacks and migrations, or `all`. A stack brings its migrations along")
    product: dict[AxisName, Annotated[list[Text], Field(min_length=1)]] = Field(
        {},
        description="Mapping of axis to versions: every combination "
        "that satisfies the constraints becomes a cell",
    )
    with_: dict[AxisName, Text] = Field(
        {}, alias="with", description="Mapping of axis to a version that all cells of the product have"
    )
    recipe: Name = Field("", description="The recipe of these cells")


class ProfileEntry(MatrixEntry):
    """A selection of cells and checks that one command plans."""

    title: Title
    select: list[SelectEntry] = Field(
        min_length=1, description="The selections of cells; the profile contains all of them"
    )
    without: dict[Name, Text] = Field(
        {}, description="Checks that this profile does not run, each with the reason"
    )


class RunnerEntry(MatrixEntry):
    """A machine or cluster that can execute tasks."""

    title: Title
    kind: Literal["local", "ray"] = Field(description="`local` is this machine, `ray` a Ray cluster")
    devices: list[Literal["sim", "npu", "cpu"]] = Field(
        min_length=1, description="Kinds of devices available there"
    )
    labels: dict[str, Text] = Field(
        {}, description="Facts about the runner. Names in capitals are folders, such as DATA_ROOT"
    )
    soc: list[Name] = Field([], description="SoC families of its NPUs, values of the axis `soc`")
    keys: list[Annotated[str, Field(pattern=PUBLIC_KEY)]] = Field(
        [],
        description="OpenSSH public keys. Hardware outcomes that this runner measured and signed with one of "
        "them (`npu-matrix ledger sign`) count on other machines. Each is a line of an allowed-signers file "
        'without its name: optionally valid-after="DATE" or valid-before="DATE", the type, the key',
    )
    revoked_keys: Text | None = Field(
        None,
        description="File next to matrix.yaml with revoked keys: an OpenSSH key revocation list, or one "
        "public key per line",
    )
    namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN)] = Field(
        "npu-matrix",
        description="Namespace of its signatures. With a name of its own, a repository does not believe "
        "signatures that the runner made for other repositories",
    )


class ExpectationEntry(MatrixEntry):
    """An expected failure: a check that is known not to pass in some cells until a date or version."""

    cells: Annotated[str, Tag("glob")] | Annotated[Conditions, Tag("axes")] = Field(
        discriminator=Discriminator(lambda value: "axes" if isinstance(value, dict) else "glob"),
        description="A glob pattern for cell ids and stack names, or a mapping of axis to version specifiers",
    )
    check: Text = Field(description="The check that is expected to fail")
    state: Literal["fail", "numeric-drift", "timeout", "crash", "inconclusive", "unsupported", "error"] = (
        Field(description="The expected state. Any other state is a new failure")
    )
    because: list[Text] = Field(
        [],
        description="Texts of which every reason of the failure must contain at least one; a reason "
        "without any is a new failure",
    )
    reason: Reason
    source: Source
    owner: Owner
    until: Text = Field(
        description="When the expectation ends: a date such as 2027-01-31, or an axis and a specifier "
        "such as 'verl >=0.7.0'"
    )


class MigrationEntry(MatrixEntry):
    """A version upgrade of a stack: the old and the new versions are both planned until the new ones pass."""

    stack: Name = Field(description="The stack that is upgraded")
    title: Title
    to: dict[AxisName, Text] = Field(
        min_length=1,
        description="Mapping of axis to the new version. `0.10.0.dev0@main` follows a branch: the current "
        "commit of `main` is used whenever a plan is made",
    )
    reason: Reason
    source: Source
    owner: Owner
    until: Text = Field(description="The date by which the upgrade should be finished, such as 2027-01-31")


class PatchPlaceEntry(MatrixEntry):
    """Patches in a folder of this repository or of the repository of an axis, or on a branch of this one."""

    upstream: AxisName = Field(
        "", description="The axis whose source code they change. Not needed if the layout names it"
    )
    folder: Text = Field("", description="The folder with the patches, relative to matrix.yaml")
    axis: AxisName = Field(
        "",
        description="The axis whose repository has the folder: a cell has the patches that are there at the "
        "commit which it has of this axis",
    )
    layout: Literal["verl_npu", "verl-ascend-recipe", "quilt", "plain"] | None = Field(
        None,
        description="How the folder is organised. Default: detected. `plain` is also for git format-patch",
    )
    versions: Specifiers = Field(
        [],
        description="The versions of the upstream that they are for. Default: what the layout says, else all",
    )
    files: list[Text] = Field(
        [],
        description="Only these files of the folder, for example where it has patches for several upstreams: "
        "paths relative to the folder, `*` matches within a name. They are applied in this order. "
        "Default: all, in the order of their names",
    )
    strip: int = Field(
        1,
        ge=0,
        le=12,
        description="The number N of `patch -pN`: how many leading components the paths in the patches have. "
        "git writes one, a/ or b/",
    )
    inside: Text = Field(
        "",
        description="The folder of the upstream that the paths in the patches are relative to, if that is "
        "not the top of its repository: `vllm_ascend` for patches of the installed package",
    )
    left_out: Text = Field(
        "", description="Why no cell has the patches of the folder, for example because they are for GPUs"
    )
    branch: Text = Field("", description="Instead of a folder: the branch, tag or commit with the changes")
    base: Text = Field("", description="The branch, tag or commit of the upstream that `branch` started from")
    source: Text = Field("", description="Where the patches come from")


class LeftOutTestEntry(MatrixEntry):
    """A test file or test of a suite that is not run."""

    test: Text = Field(
        description="A path in the repository, or a path, `::` and the name of a class or test; `*` and `?` "
        "are allowed in paths only"
    )
    reason: Reason


class SuiteEntry(MatrixEntry):
    """A test suite of an upstream, which the check `upstream-tests` runs inside the cells."""

    title: Title
    upstream: AxisName = Field(
        description="The axis whose repository has the tests. Only cells with this axis have the suite"
    )
    source: Source
    when: Conditions = Field({}, description="Mapping of axis to version specifiers: what else a cell needs")
    revision: Annotated[list[Text], BeforeValidator(_as_list), WithJsonSchema(_TEXTS)] = Field(
        description="How the commit with the tests is found; the first rule that succeeds counts. `cell`: "
        "the commit that the cell has of the upstream. `package`: the commit that the installed package says "
        "it was built from. Anything else: a pattern of tags, such as 'v{version}'"
    )
    submodule: Text = Field("", description="The path of the submodule in which the tests are")
    repository: Text = Field("", description="The repository of the submodule")
    tree: list[Text] = Field(
        [], description="Folders and files that the tests need. Default: the top folders of `paths`"
    )
    paths: list[Text] = Field(min_length=1, description="Test files, folders with them, or glob patterns")
    device: Literal["npu", "cpu"] = Field(
        "npu", description="`npu`: the tests run on the device of the cell. `cpu`: they need none"
    )
    cwd: Text = Field("", description="The folder of the repository in which pytest is started")
    python_path: list[Text] = Field([], description="Folders of the repository for PYTHONPATH")
    config: Text = Field("", description="pytest's configuration file in the repository. Default: none")
    env: dict[str, Text] = Field({}, description="Environment variables of the tests")
    preload: list[Text] = Field([], description="Modules that all test files import")
    cards: Annotated[int, Field(ge=1)] = Field(1, description="How many cards the simulated device has")
    requirements: list[Text] = Field(
        [], description="Packages that only the tests need, installed without their dependencies"
    )
    leave_out: list[LeftOutTestEntry] = Field([], description="Tests that are not run, each with its reason")
    test_seconds: Annotated[int, Field(ge=1)] = Field(120, description="Time limit of one test")
    file_seconds: Annotated[int, Field(ge=1)] = Field(900, description="Time limit of one file")
    memory_mib: Annotated[int, Field(ge=1)] = Field(
        6144, description="Memory limit of the processes of one file, in MiB"
    )
    disabled: Text = Field(
        "",
        description="A file of the repository with a list of tests that the upstream itself does not run. "
        "They are run here, and the report names those that pass",
    )


class MatrixFile(MatrixEntry):
    """matrix.yaml: the version matrix of npu-matrix."""

    format: Literal[1] = Field(description="Format version of this file")
    include: Annotated[list[Text], BeforeValidator(_as_list), WithJsonSchema(_TEXTS)] = Field(
        [],
        description="Matrices whose entries this file starts from: `npu-matrix:VERSION` is the shipped one, "
        "anything else a file in this repository. An own entry replaces the included one of the same name; "
        "keys of an axis are merged",
    )
    axes: dict[AxisName, AxisEntry] = Field({}, description="The versioned components of a cell")
    stacks: dict[Name, StackEntry] = Field(
        {}, description="Named sets of versions, as their authors publish them"
    )
    published: dict[Name, TableEntry] = Field({}, description="Published compatibility tables")
    constraints: dict[Name, ConstraintEntry] = Field(
        {}, description="Rules that exclude combinations of versions"
    )
    pins: list[PinEntry] = Field([], description="Package requirements in addition to the axis values")
    overrides: list[OverrideEntry] = Field(
        [], description="Requirements that replace those of other packages"
    )
    recipes: dict[Name, RecipeEntry] = Field({}, description="Training and inference jobs")
    profiles: dict[Name, ProfileEntry] = Field({}, description="Selections of cells and checks to plan")
    patches: list[PatchPlaceEntry] = Field([], description="Patches that are read where they lie")
    suites: dict[Name, SuiteEntry] = Field(
        {}, description="Test suites of upstreams, which the check upstream-tests runs"
    )
    runners: dict[Name, RunnerEntry] = Field({}, description="Machines and clusters that can execute tasks")
    expectations: dict[Name, ExpectationEntry] = Field(
        {}, description="Expected failures, each with an end date or version"
    )
    migrations: dict[Name, MigrationEntry] = Field({}, description="Version upgrades of stacks")


def json_schema() -> JsonSchemaValue:
    """The JSON schema of matrix.yaml that is committed as `form.SCHEMA_FILE`."""
    schema = MatrixFile.model_json_schema(by_alias=True)
    _close(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _close(node: Any) -> None:
    # The models reject keys that do not match the pattern; pydantic leaves this out of the schema.
    for below in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _close(below)
    if isinstance(node, dict) and "patternProperties" in node:
        node["additionalProperties"] = False
