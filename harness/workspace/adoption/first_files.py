"""The first files of npu-matrix in another repository: matrix.yaml, a gate workflow, .gitignore."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import Version

from harness import __version__
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.version_matrix import Matrix
from harness.package import data_file
from harness.settings import MATRIX_FILE
from harness.workspace.adoption.first_stacks import OwnStack, is_for_cann, own_stacks, shipped_stacks
from harness.workspace.adoption.found_patches import FoundPatches
from harness.workspace.adoption.repository_survey import RepositorySurvey
from harness.workspace.pins.dockerfile_pins import is_dockerfile

WORKFLOW = ".github/workflows/npu-matrix.yml"
# A run that is killed while it writes the report leaves a hidden folder beside it.
IGNORED = (".npu-matrix/", "/reports/", "/.reports.*/", "/npu-matrix-demo/")
#: The profile on the simulated device that a fork of verl gets.
SIMULATED = "simulated"
#: The suites of the upstreams take minutes to hours: longer than a first report or a gate may.
_UPSTREAM_TESTS = "upstream-tests"
#: More folders of scripts than this are linted in one step.
_MOST_FOLDERS = 4


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
    own = own_stacks(survey, shipped)
    chosen = shipped_stacks(survey, shipped, own)
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
    entries = [_patch_entry(found) for found in survey.patches]
    if survey.fork and survey.fork.base:
        fork = survey.fork
        base = _quoted(fork.base)
        note = f"; {fork.of} of today: change it, and the stack, when you merge" if fork.of else ""
        entries.append(
            f"  - {{branch: HEAD, base: {base}, upstream: {fork.axis}}}  # {fork.commits} commits{note}"
        )
    if not entries:
        return
    yield "patches:"
    yield from entries
    yield ""


def _patch_entry(found: FoundPatches) -> str:
    """The entry for patches; of those that were not placed, it states why."""
    settings = {
        "layout": found.layout if not found.reason else "",
        "upstream": found.upstream,
        "versions": _quoted(f"=={found.version}") if found.version else "",
        "files": f"[{', '.join(map(_quoted, found.only))}]" if found.only else "",
        "strip": str(found.strip) if found.strip != 1 else "",
        "inside": found.inside,
        "left_out": _quoted(found.reason) if found.reason else "",
    }
    more = "".join(f", {name}: {value}" for name, value in settings.items() if value)
    return f"  - {{folder: {_quoted(found.folder)}{more}}}  # {len(found.files)} files"


def _stack_lines(stack: OwnStack) -> Iterator[str]:
    yield f"  {stack.name}:"
    yield f"    title: {_quoted(stack.title)}"
    yield f"    source: {_quoted(stack.source)}"
    yield "    axes:"
    for axis, (version, where) in stack.axes.items():
        yield f"      {axis}: {_quoted(version)}  # {_one_line(where)}"
    yield ""


def workflow_text(survey: RepositorySurvey, shipped: Matrix) -> str:
    """The gate workflow for GitHub. Scripts are linted where the repository has launch scripts."""
    text = data_file("workspace/adoption/gate-workflow.yml").read_text(encoding="utf-8")
    lint = ""
    verl = (stack.axes.get("verl", "@") for stack in shipped.stacks.values())
    own = [stack.axes for stack in own_stacks(survey, shipped)]
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


def describe(survey: RepositorySurvey) -> Sequence[str]:
    """What was found, one line each, for the user to check."""
    lines = [f"{survey.root}: {survey.kind}"]
    for found in survey.patches:
        what = (
            f"not used: {found.reason}" if found.reason else (found.layout or f"patches of {found.upstream}")
        )
        paths = f", paths for -p{found.strip}" if found.strip != 1 else ""
        paths += f", relative to {found.inside}/" if found.inside else ""
        lines.append(f"  patches   {found.folder}: {len(found.files)} files, {what}{paths}")
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
    absent: dict[str, list[str]] = {}
    for axis, pin in (pin for pins in survey.unknown.values() for pin in pins.items()):
        absent.setdefault(f"{axis} {pin.version[:13]}", []).append(pin.where)
    for pinned, (where, *more) in absent.items():
        others = f" and {len(more)} more" if more else ""
        lines.append(f"  pin       {pinned} ({where}{others}): no clone here tells its version")
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
            {
                "folder": one.folder,
                "layout": one.layout,
                "upstream": one.upstream,
                "files": list(one.files),
                "strip": one.strip,
                "inside": one.inside,
            }
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
