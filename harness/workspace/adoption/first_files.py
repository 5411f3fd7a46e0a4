"""The first files of npu-matrix in another repository: matrix.yaml, a gate workflow, .gitignore."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import Version

from harness import __version__
from harness.errors import Location
from harness.matrix.model.constraints import AxisAgreement
from harness.matrix.model.definitions import Axis, PatchPlace, Stack
from harness.matrix.model.versions import parse_version
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.version_matrix import Matrix
from harness.package import data_file
from harness.patchstack.stacks.patch_sources import PatchSources, PlacedPatch
from harness.settings import MATRIX_FILE
from harness.workspace.adoption.dockerfile_pins import is_dockerfile
from harness.workspace.adoption.pinned_versions import PinnedVersion
from harness.workspace.adoption.repository_survey import RepositorySurvey

WORKFLOW = ".github/workflows/npu-matrix.yml"
IGNORED = (".npu-matrix/", "/reports/", "/npu-matrix-demo/")
#: The Python of cells whose repository does not say. Every torch_npu of the matrix has wheels for it.
_PYTHON = "3.11"
_PATCHES_HERE = 3
#: The profile on the simulated device that a fork of verl gets.
SIMULATED = "simulated"
#: The suites of the upstreams take minutes to hours: longer than a first report or a gate may.
_UPSTREAM_TESTS = "upstream-tests"
#: More stacks than this are no first matrix; the user adds the others.
_MOST_STACKS = 8
#: More folders of scripts than this are linted in one step.
_MOST_FOLDERS = 4
#: A folder that pins none of these is not about this stack.
_NPU_AXES = frozenset({"verl", "vllm_ascend", "torch_npu"})


@dataclass(frozen=True, kw_only=True)
class FirstFile:
    """A file to write. action: `create`, `append`, `keep` (it exists) or `replace` (with --force)."""

    name: str
    text: str
    action: str


def first_files(
    survey: RepositorySurvey, shipped: Matrix, *, gates: Sequence[tuple[str, str]] = (), force: bool = False
) -> tuple[FirstFile, ...]:
    """What `init` writes; existing files are kept unless `force`.

    gates: name and text of the files of a gate; without them, a GitHub workflow is written.
    """
    matrix = matrix_text(survey, shipped)
    # A mistake here would be found by the user's next command.
    parse_matrix(matrix, MATRIX_FILE)
    return (
        _new(survey.root, MATRIX_FILE, matrix, force=force),
        *(
            _new(survey.root, name, text, force=force)
            for name, text in gates or ((WORKFLOW, workflow_text(survey, shipped)),)
        ),
        _ignore(survey.root),
    )


def _new(root: Path, name: str, text: str, *, force: bool) -> FirstFile:
    file = root / name
    if not file.exists() and not file.is_symlink():
        return FirstFile(name=name, text=text, action="create")
    return FirstFile(name=name, text=text, action="replace" if force else "keep")


def _ignore(root: Path) -> FirstFile:
    file = root / ".gitignore"
    before = file.read_text(encoding="utf-8", errors="surrogateescape") if file.is_file() else ""
    missing = [line for line in IGNORED if line not in before.splitlines()]
    if not missing:
        return FirstFile(name=".gitignore", text="", action="keep")
    lead = "\n" if before and not before.endswith("\n") else ""
    text = f"{lead}# npu-matrix\n" + "".join(f"{line}\n" for line in missing)
    return FirstFile(name=".gitignore", text=text, action="append" if before else "create")


def matrix_text(survey: RepositorySurvey, shipped: Matrix) -> str:
    """The text of matrix.yaml, with a comment on where each value comes from."""
    own = _own_stacks(survey, shipped)
    chosen = _shipped_stacks(survey, shipped, has_own=bool(own))
    lines = [
        f"# Made by npu-matrix init for {survey.kind}. Check it with: npu-matrix matrix validate",
        "# Axes, constraints, pins and published stacks come from the matrix of npu-matrix.",
        "# An entry here replaces the entry of the same name there.",
        "format: 1",
        f"include: npu-matrix:{__version__}",
        "",
    ]
    lines += _patches_section(survey)
    lines += ["stacks:"] if own else []
    lines += [line for stack in own for line in _stack_lines(stack)]
    selected = [*(stack.name for stack in own), *chosen]
    lines += [
        "profiles:",
        "  default:",
        f"    title: {_quoted(f'stacks of {survey.root.name}')}",
        "    select:",
        f"      - {{stacks: [{', '.join(selected)}]}}",
        *_without(shipped, _UPSTREAM_TESTS),
        *_simulated_profile(survey, shipped),
    ]
    return "\n".join(lines) + "\n"


def _simulated_profile(survey: RepositorySurvey, shipped: Matrix) -> Iterator[str]:
    """A profile that trains a fork of verl on the simulated device, as the shipped default profile does."""
    fork = survey.fork
    shown = next((one for one in shipped.profiles["default"].select if one.product), None)
    if not fork or not fork.base or fork.axis != "verl" or shown is None:
        return
    yield f"  {SIMULATED}:"
    name = _one_line(survey.root.resolve().name)
    yield f"    title: {_quoted(f'losses and training of {name} on the simulated device')}"
    yield "    select:"
    yield "      - product:"
    for axis, values in {**shown.product, "verl": (fork.version,)}.items():
        yield f"          {axis}: [{', '.join(map(_quoted, values))}]"
    fixed = ", ".join(f"{axis}: {_quoted(value)}" for axis, value in shown.fixed.items())
    yield f"        with: {{{fixed}}}"
    yield f"        recipe: {shown.recipe}"
    yield from _without(shipped, "")


def _without(shipped: Matrix, start: str) -> Iterator[str]:
    """The checks that the shipped default profile leaves out, too, if their names start like this."""
    without = [one for one in shipped.profiles["default"].without if one.check.startswith(start)]
    if without:
        yield "    without:"
        yield from (f"      {one.check}: {_quoted(one.reason)}" for one in without)


def _patches_section(survey: RepositorySurvey) -> Iterator[str]:
    entries = []
    for found in survey.patches:
        if found.reason:
            names = [PurePosixPath(file).name for file in found.files[:_PATCHES_HERE]]
            files = ", ".join(names) + (" ..." if len(found.files) > _PATCHES_HERE else "")
            entries.append(f"  # not used: {_one_line(found.folder)} ({_one_line(files)}): {found.reason}")
            continue
        layout = f", layout: {found.layout}" if found.layout else ""
        upstream = f", upstream: {found.upstream}" if found.upstream else ""
        folder = _quoted(found.folder)
        versions = f', versions: "=={found.version}"' if found.version else ""
        entries.append(f"  - {{folder: {folder}{layout}{upstream}{versions}}}  # {len(found.files)} files")
    if survey.fork and survey.fork.base:
        fork = survey.fork
        base = _quoted(fork.base)
        note = f"; {fork.of} of today: change it, and the stack, when you merge" if fork.of else ""
        entries.append(
            f"  - {{branch: HEAD, base: {base}, upstream: {fork.axis}}}  # {fork.commits} commits{note}"
        )
    if not any(entry.startswith("  -") for entry in entries):
        yield from (f"#{entry[3:]}" for entry in entries)
        return
    yield "patches:"
    yield from entries
    yield ""


@dataclass(frozen=True, kw_only=True)
class OwnStack:
    """A stack that a folder of the repository pins. axes: axis -> (version, where it is from)."""

    name: str
    title: str
    source: str
    axes: Mapping[str, tuple[str, str]]


def _own_stacks(survey: RepositorySurvey, shipped: Matrix) -> list[OwnStack]:
    """The stacks that the repository itself pins: one for each folder with pins, and that of a fork."""
    fork = survey.fork
    found: list[OwnStack] = []
    for folder, pins in _stack_pins(survey).items():
        axes = {axis: (pin.version, pin.where) for axis, pin in pins.items()}
        files = dict.fromkeys(pin.where.rpartition(":")[0] for pin in pins.values())
        if fork and fork.base and fork.version:
            base = (
                "the commit of today; later commits are its patches"
                if fork.of == "HEAD"
                else f"where HEAD left {fork.of}"
                if fork.of
                else f"the release before HEAD; base {fork.base}"
            )
            axes[fork.axis] = (fork.version, base)
            files[f"git history, {fork.of or fork.base}"] = None
        if not _NPU_AXES & axes.keys():
            continue
        axes |= _published_with(axes, shipped)
        if "python" not in axes:
            axes["python"] = (_PYTHON, "not pinned here; write the Python of your environment")
        axes["device"] = ("npu", "checks that need an NPU are not run where there is none")
        where = "" if folder == "." else f"/{folder}"
        found.append(
            OwnStack(
                name=_stack_name(survey.root.resolve().name, folder, {one.name for one in found}),
                title=f"what {survey.root.resolve().name}{where} pins",
                source=", ".join(files),
                axes=axes,
            )
        )
    return found[:_MOST_STACKS]


def _stack_pins(survey: RepositorySurvey) -> dict[str, Mapping[str, PinnedVersion]]:
    """The pins of each stack: of every folder, in a fork of its top folder, and of Dockerfiles.

    A Dockerfile installs the requirements at the top, too. Left out are those that pin no package for NPUs,
    those for older CANN releases than the newest one, and those with the versions of another one.
    """
    top = survey.pins.get(".", {})
    folders = {
        folder: pins
        for folder, pins in survey.pins.items()
        if not is_dockerfile(PurePosixPath(folder)) and (folder == "." or not survey.fork)
    }
    stacks: dict[str, Mapping[str, PinnedVersion]] = {".": top, **folders}
    files = {
        name: merged
        for name, pins in survey.pins.items()
        # A fork of verl or vllm-ascend installs itself.
        if is_for_cann(name, pins) and (_NPU_AXES & (merged := {**top, **pins}).keys() or survey.fork)
    }
    newest = max((parse_version("cann", pins["cann"].version) for pins in files.values()), default=None)
    if newest is not None and "cann" in top:
        newest = max(newest, parse_version("cann", top["cann"].version))
    is_bare = not {"torch_npu", "vllm_ascend"} & top.keys()
    known = [_versions(pins) for pins in stacks.values()]
    for name, pins in files.items():
        if parse_version("cann", pins["cann"].version) == newest and _versions(pins) not in known:
            stacks[name] = pins
            known.append(_versions(pins))
    if is_bare and len(stacks) > 1:  # The others have the same requirements, and more.
        del stacks["."]
    return stacks


def is_for_cann(name: str, pins: Mapping[str, PinnedVersion]) -> bool:
    """Whether these are the pins of a Dockerfile with a CANN image for an NPU that the matrix has."""
    return is_dockerfile(PurePosixPath(name)) and {"cann", "soc"} <= pins.keys()


def _versions(pins: Mapping[str, PinnedVersion]) -> dict[str, str]:
    return {axis: pin.version for axis, pin in pins.items()}


def _published_with(axes: Mapping[str, tuple[str, str]], shipped: Matrix) -> dict[str, tuple[str, str]]:
    """Packages that must agree with a pinned one and are not pinned, as a published table lists them for it.

    vllm-ascend pins no vLLM, but is published for one release of it.
    """
    found = {}
    for rule in (rule for one in shipped.constraints.values() for rule in one.require):
        if not isinstance(rule, AxisAgreement) or rule.axis in axes or rule.other not in axes:
            continue
        version = shipped.axes[rule.other].parse(axes[rule.other][0])
        if ".dev" in version.nominal:  # The tables list releases.
            continue
        for table in shipped.published.values():
            if table.key == rule.other and rule.axis in table.columns:
                listed = table.column(rule.axis).get(version.nominal)
                if listed and _is_version(shipped.axes[rule.axis], listed):
                    found[rule.axis] = (listed, f"not pinned here; {table.title} lists it")
    return found


def _is_version(axis: Axis, text: str) -> bool:
    try:
        axis.parse(text)
    except ValueError:
        return False
    return True


def _stack_lines(stack: OwnStack) -> Iterator[str]:
    yield f"  {stack.name}:"
    yield f"    title: {_quoted(stack.title)}"
    yield f"    source: {_quoted(stack.source)}"
    yield "    axes:"
    for axis, (version, where) in stack.axes.items():
        yield f"      {axis}: {_quoted(version)}  # {_one_line(where)}"
    yield ""


def _shipped_stacks(survey: RepositorySurvey, shipped: Matrix, *, has_own: bool) -> list[str]:
    """The shipped stacks that the patches of the repository are for, else the newest release of verl."""
    places = tuple(
        PatchPlace(upstream=one.upstream, folder=one.folder, layout=one.layout, where=Location(MATRIX_FILE))
        for one in survey.patches
        if not one.reason
    )
    sources = PatchSources(root=survey.root, shipped=None, places=places, axes=shipped.axes)
    pinned = [one for one in sources.placed if one.pin]
    named = [
        stack.name
        for stack in shipped.stacks.values()
        if stack.name not in shipped.migrations and _is_named(stack, pinned, survey, shipped)
    ]
    if named or has_own:
        return named
    releases = [
        (Version(stack.axes["verl"]), stack.name)
        for stack in shipped.stacks.values()
        if "@" not in stack.axes.get("verl", "@") and stack.name not in shipped.migrations
    ]
    return [max(releases)[1]] if releases else list(shipped.stacks)[:1]


def _is_named(stack: Stack, pinned: Sequence[PlacedPatch], survey: RepositorySurvey, shipped: Matrix) -> bool:
    """Whether a patch is for a commit or release of the stack by the name of its folder or file."""
    return any(
        one.upstream in stack.axes and one.is_for(shipped.axes[one.upstream], stack.axes[one.upstream])
        for one in pinned
    ) or any(
        _is_release(stack.axes.get(one.upstream, ""), one.version) for one in survey.patches if one.version
    )


def _is_release(value: str, version: str) -> bool:
    """Whether the value of a stack is this release, and no commit."""
    return bool(value) and "@" not in value and Version(value) == Version(version)


def workflow_text(survey: RepositorySurvey, shipped: Matrix) -> str:
    """The gate workflow for GitHub. Scripts are linted where the repository has launch scripts."""
    text = data_file("workspace/adoption/gate-workflow.yml").read_text(encoding="utf-8")
    lint = ""
    verl = (stack.axes.get("verl", "@") for stack in shipped.stacks.values())
    own = [stack.axes for stack in _own_stacks(survey, shipped)]
    # Without own stacks, the profile has shipped ones, which are of verl.
    has_verl = not own or any("verl" in axes for axes in own)
    version = "profile" if has_verl else max((one for one in verl if "@" not in one), key=Version)
    for folder in survey.scripts if len(survey.scripts) <= _MOST_FOLDERS else (".",):
        lint += (
            f"      - name: {json.dumps(f'lint the launch scripts in {folder}')}\n"
            f"        if: always()\n"
            f'        run: npu-matrix lint {_shell(folder)} --verl {version} --diff "$BASE" --format github\n'
        )
    return text.replace("@VERSION@", __version__).replace("@LINT@\n", lint)


def _shell(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'" if re.search(r"[^\w./-]", word) else word


def _quoted(text: str) -> str:
    """The text as a YAML scalar; JSON strings are YAML."""
    return text if re.fullmatch(r"[A-Za-z0-9][\w./@+-]*|\.", text) else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _stack_name(repository: str, folder: str, taken: Collection[str]) -> str:
    """A name that no other stack has. Of a Dockerfile, the words after `Dockerfile` count."""
    path = PurePosixPath(folder)
    if is_dockerfile(path):
        folder = re.sub(r"(?i)(docker|container)file", "", path.name)
    name = _name(f"{repository}/{folder}")
    return next(one for n in itertools.count(1) if (one := f"{name}-{n}" if n > 1 else name) not in taken)


def _name(text: str) -> str:
    """A name for a stack: lower-case letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-")
    return name or "this-repository"


def describe(survey: RepositorySurvey) -> Sequence[str]:
    """What was found, one line each, for the user to check."""
    lines = [f"{survey.root}: {survey.kind}"]
    for found in survey.patches:
        what = (
            f"not used: {found.reason}" if found.reason else (found.layout or f"patches of {found.upstream}")
        )
        lines.append(f"  patches   {found.folder}: {len(found.files)} files, {what}")
    if survey.own_stacks:
        lines.append(
            f"  patches   patches/: stacks of {', '.join(survey.own_stacks)} in the format of npu-matrix"
        )
    if survey.fork:
        fork = survey.fork
        start = f"{fork.base[:12]} ({fork.of})" if fork.of else fork.base
        since = f"{fork.commits} own commits since {start}" if fork.base else f"no base: {fork.note}"
        release = fork.version.partition("@")[0] or "(release unknown)"
        lines.append(f"  fork      of {fork.axis} {release}, {since}")
    for folder, pins in survey.pins.items():
        if is_dockerfile(PurePosixPath(folder)):
            if is_for_cann(folder, pins):
                versions = ", ".join(f"{axis} {pin.version}" for axis, pin in pins.items())
                lines.append(f"  pins      {folder}: {versions}")
            continue
        for axis, pin in pins.items():
            other = f"; elsewhere: {', '.join(pin.other[:2])}" if pin.other else ""
            lines.append(f"  pin       {axis} {pin.version} ({pin.where}{other})")
    if survey.scripts:
        lines.append(f"  scripts   {', '.join(survey.scripts)}")
    if survey.workflows:
        lines.append(f"  workflows {len(survey.workflows)}: {', '.join(survey.workflows[:3])}")
    if not survey.is_git:
        lines.append("  no git repository: the gate compares revisions, so run `git init` and commit first")
    return lines


def as_json(survey: RepositorySurvey, files: Sequence[FirstFile]) -> Mapping[str, object]:
    """The survey and the files for `--json`."""
    return {
        "kind": survey.kind,
        "patches": [
            {"folder": one.folder, "layout": one.layout, "upstream": one.upstream, "files": list(one.files)}
            | ({"reason": one.reason} if one.reason else {})
            for one in survey.patches
        ],
        "pins": [
            {"axis": axis, "version": pin.version, "where": pin.where}
            for pins in survey.pins.values()
            for axis, pin in pins.items()
        ],
        "scripts": list(survey.scripts),
        "workflows": list(survey.workflows),
        "files": [{"name": file.name, "action": file.action, "text": file.text} for file in files],
    }
