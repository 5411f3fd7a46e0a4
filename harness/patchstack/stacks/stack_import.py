"""Read patch stacks in other formats: the NPU plugin, the Ascend recipes, quilt, or any folder."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from harness.errors import InputError, Location, Problem
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.stacks.patch_stack import PATCH_SUFFIXES, SERIES, patch_files, read_patch_file
from harness.patchstack.stacks.summary_claims import Claim, read_claims
from harness.sources.git.branch_patches import complete_last_line
from harness.sources.git.patch_paths import with_one_component

PLUGIN = "verl_npu"
RECIPE = "verl-ascend-recipe"
QUILT = "quilt"
PLAIN = "plain"
LAYOUTS = (PLUGIN, RECIPE, QUILT, PLAIN)
REQUIRED_VERL = "REQUIRED_VERL.txt"
_SUMMARY = "patch_summary/patch_summary.yaml"
#: The files that decide which patches a folder has and in which order, where a layout has them.
ORDER_FILES = (
    "series",
    "patches/series",
    *(f"{top}{_SUMMARY}" for top in ("", "verl_npu/", "verl_npu/verl_npu/")),
)
#: The option of a line in a quilt series; `-pab` is the default, paths in `a/` and `b/`.
_STRIP = re.compile(r"-p(ab|\d{1,2})")
_SETTING = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")
#: The start of a file's changes in any kind of patch, and of a hunk.
_DIFF = re.compile(rb"^(?:diff --git |Index: |--- [^\n]*\n\+\+\+ )", re.MULTILINE)
_HUNK = re.compile(rb"^@@ -\d", re.MULTILINE)
#: Larger files are not searched for patches. Documents show patches, but are none.
_MAX_PATCH_BYTES = 4 << 20
_DOCUMENTS = frozenset({".md", ".rst", ".html", ".htm", ".ipynb", ".tex"})


@dataclass(frozen=True, kw_only=True)
class ImportedPatch:
    """One patch file of another stack.

    upstream: the repository that the patch is for, as the stack names it, or "".
    pin: the commit or tag that the patch was made for, or "" if none is recorded.
    claims: the changes that the stack's own summary lists for the patch; None if it does not list the file.
    """

    upstream: str
    name: str
    pin: str
    file: Path
    data: bytes
    claims: tuple[Claim, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ImportedStack:
    """An imported stack, in its order, with all its problems.

    summary: the file that documents the changes of the stack, if it has one.
    left_out: those of the problems that are about a patch file which is not in the stack, their `where`.
    refused: those for which quilt refuses the series, for example because a file does not exist.
    """

    layout: str
    folder: Path
    patches: tuple[ImportedPatch, ...]
    problems: tuple[Problem, ...]
    summary: Path | None = None
    left_out: tuple[Problem, ...] = ()
    refused: tuple[Problem, ...] = ()


def import_patches(
    folder: Path, layout: str = "", *, files: Sequence[str] = (), strip: int = 1, inside: str = ""
) -> ImportedStack:
    """Read a stack. Without `layout` the format is detected. InputError if the folder has no patches.

    files: globs of the files that count, in the order in which they are applied. strip: the number of leading
    components that the paths in the patches have, where the layout does not say it for each of them. inside:
    the folder of the sources that they are relative to, "" for the top.
    """
    if not folder.is_dir():
        raise InputError("the folder to import from does not exist", where=Location(folder))
    root = _plugin_root(folder)
    selected = layout or (PLAIN if files else _detected_layout(folder, root))
    if selected == PLUGIN:
        if root is None:
            raise InputError(
                "this is not a checkout of the NPU plugin",
                where=Location(folder),
                fix="expected patch/<repository>/<commit>/*.patch",
            )
        found, problems = _plugin(root)
    elif selected == RECIPE:
        found, problems = _recipe(folder)
    elif selected == QUILT:
        found, problems = _quilt(folder)
    elif selected == PLAIN:
        every = patch_files(folder)
        chosen = [one for glob in files for one in every if is_named(one, folder, [glob])] if files else every
        chosen = list(dict.fromkeys(chosen))
        found, problems = [_read(file, "", "", folder) for file in chosen], []
    else:
        raise InputError(f"unknown layout {selected!r}", fix=f"one of {', '.join(LAYOUTS)}")
    if strip != 1 or inside:
        found = [replace(patch, data=with_one_component(patch.data, strip, inside)) for patch in found]
    problems += [problem for patch in found for problem in _patch_problems(patch)]
    searched = root / "patch" if selected == PLUGIN and root else folder
    left_out = [
        *(problem for problem in problems if _is_unlisted(problem, found)),
        *(
            problem
            for problem in _left_out(searched, found, problems)
            if problem.where and is_named(Path(problem.where.file), folder, files)
        ),
    ]
    problems += [problem for problem in left_out if problem not in problems]
    if not found:
        raise InputError(
            f"this folder has no patches laid out as {selected}",
            where=Location(folder),
            why="; ".join(problem.what for problem in problems[:3]),
            fix="give the folder that contains them, or the layout that they have",
        )
    summary = root / _SUMMARY if selected == PLUGIN and root else None
    return ImportedStack(
        layout=selected,
        folder=folder,
        patches=tuple(found),
        problems=tuple(problems),
        summary=summary if summary and summary.is_file() else None,
        left_out=tuple(left_out),
        refused=tuple(
            problem
            for problem in problems
            if selected == QUILT and problem.where and Path(problem.where.file).name == SERIES
        ),
    )


def is_named(file: Path, folder: Path, globs: Sequence[str]) -> bool:
    """Whether one of the globs is for this file of the folder; without globs, all of its files count."""
    parts = file.relative_to(folder).parts
    wanted = (PurePosixPath(glob).parts for glob in globs)
    return not globs or any(
        len(parts) == len(one) and all(map(fnmatch.fnmatchcase, parts, one)) for one in wanted
    )


def _is_unlisted(problem: Problem, found: Sequence[ImportedPatch]) -> bool:
    """Whether the problem is about a patch file of the folder that is not among the found ones."""
    file = Path(problem.where.file) if problem.where else Path()
    return (
        file.suffix in PATCH_SUFFIXES
        and file.is_file()
        and os.path.realpath(file) not in {os.path.realpath(patch.file) for patch in found}
    )


def _left_out(folder: Path, found: Sequence[ImportedPatch], problems: Sequence[Problem]) -> list[Problem]:
    """A problem for each patch file that is not imported and that no other problem names.

    A patch is recognised by its name or by what it contains, for example `fix.patch.txt` or a mailbox.
    """
    imported = {os.path.realpath(patch.file) for patch in found}
    texts = [problem.what for problem in problems]
    return [
        Problem(
            f"{file.name} is a patch file that is not imported",
            Location(file),
            why="it is a symbolic link" if file.is_symlink() else "it is not where this layout has patches",
            fix="move or copy it to where the others are, or remove it",
        )
        for file in sorted(folder.rglob("*"))
        if (file.is_symlink() or file.is_file())
        and os.path.realpath(file) not in imported
        and (_is_named_as_patch(file) or _contains_patch(file))
        and not any(file.name in text for text in texts)
    ]


def _is_named_as_patch(file: Path) -> bool:
    """Whether one of the suffixes is that of a patch: also `fix.patch.gz`."""
    return any(suffix.lower() in PATCH_SUFFIXES for suffix in file.suffixes)


def _contains_patch(file: Path) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > _MAX_PATCH_BYTES or file.suffix.lower() in _DOCUMENTS:
            return False
        data = file.read_bytes()
    except OSError:
        return False
    return b"\0" not in data and bool(_DIFF.search(data) and _HUNK.search(data))


def _detected_layout(folder: Path, root: Path | None) -> str:
    if root is not None:
        return PLUGIN
    if any(folder.rglob(REQUIRED_VERL)):
        return RECIPE
    return QUILT if _series(folder) else PLAIN


def _plugin_root(folder: Path) -> Path | None:
    """The folder that contains `patch/` and `patch_summary/`: the checkout, or up to two levels below it."""
    for candidate in (folder, folder / "verl_npu", folder / "verl_npu" / "verl_npu"):
        if any(candidate.glob("patch/*/*/*.patch")):
            return candidate
    return None


def _plugin(root: Path) -> tuple[list[ImportedPatch], list[Problem]]:
    patches, problems = [], []
    for file in sorted(root.glob("patch/*/*/*.patch")):
        patch = _read(file, file.parents[1].name, file.parent.name, root / "patch")
        completed = replace(patch, data=complete_last_line(patch.data))
        if completed != patch:
            problems.append(_incomplete(patch))
        patches.append(completed)
    summary = root / _SUMMARY
    if not summary.is_file():
        return patches, [*problems, Problem("the plugin's summary is missing", Location(summary))]
    claims, wrong = read_claims(summary)
    problems += wrong
    claimed = {(claim.repository, claim.folder, claim.file) for claim in claims}
    folders = {(claim.repository, claim.folder) for claim in claims}
    found = []
    for patch in patches:
        key = (patch.upstream, patch.pin, patch.file.stem)
        mine = tuple(claim for claim in claims if (claim.repository, claim.folder, claim.file) == key)
        if key not in claimed:
            applied = key[:2] in folders
            what = (
                "is applied but not in the summary"
                if applied
                else "is for a commit that is not in the summary"
            )
            why = (
                "the plugin applies every file in the folder, whether it is listed or not" if applied else ""
            )
            problems.append(
                Problem(f"{patch.upstream}/{patch.pin}/{patch.file.name} {what}", Location(summary), why=why)
            )
        pins = {claim.revision for claim in claims if (claim.repository, claim.folder) == key[:2]}
        pin = pins.pop() if len(pins) == 1 else patch.pin
        found.append(replace(patch, pin=pin, claims=mine if key in claimed else None))
    there = {(patch.upstream, patch.file.parent.name, patch.file.stem) for patch in patches}
    for claim in claims:
        if (claim.repository, claim.folder, claim.file) not in there:
            problems.append(
                Problem(
                    f"{claim.repository}/{claim.folder}/{claim.file}.patch is in the summary "
                    "but does not exist",
                    Location(summary, claim.line),
                )
            )
    return found, _unique(problems)


def _incomplete(patch: ImportedPatch) -> Problem:
    return Problem(
        f"the last line of {patch.name} has no newline",
        Location(patch.file, patch.data.count(b"\n") + 1),
        why="git refuses such a patch; GNU patch, which the plugin uses, applies it, and so does npu-matrix",
        fix="add a newline at the end of the file",
    )


def _unique(problems: list[Problem]) -> list[Problem]:
    return list({(problem.what, str(problem.where)): problem for problem in reversed(problems)}.values())[
        ::-1
    ]


def _recipe(folder: Path) -> tuple[list[ImportedPatch], list[Problem]]:
    """Read the Ascend recipes: `REQUIRED_VERL.txt` pins verl, file names show the repository of a patch."""
    patches: list[ImportedPatch] = []
    problems: list[Problem] = []
    for file in patch_files(folder):
        required = _nearest(file, folder)
        settings, wrong = _settings(required) if required else ({}, [])
        problems += wrong
        upstream = _repository_of(file)
        pin = (
            settings.get("COMMIT") or settings.get("TAG", "")
            if upstream == "verl"
            else settings.get(_pin_name(upstream), "")
        )
        if not pin:
            problems.append(
                Problem(
                    f"the {upstream or 'upstream'} commit that this patch is for is not recorded",
                    Location(file),
                    why=f"{required.name} pins another repository"
                    if required
                    else f"there is no {REQUIRED_VERL} above it",
                )
            )
        patches.append(_read(file, upstream, pin, folder))
    return patches, _unique(problems)


def _nearest(file: Path, top: Path) -> Path | None:
    for parent in file.parents:
        if (parent / REQUIRED_VERL).is_file():
            return parent / REQUIRED_VERL
        if parent == top:
            return None
    return None


def _settings(file: Path) -> tuple[dict[str, str], list[Problem]]:
    settings: dict[str, str] = {}
    problems = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SETTING.fullmatch(line.strip())
        if found is None:
            problems.append(Problem("this line does not have the form NAME=value", Location(file, number)))
        elif found[1] in settings:
            problems.append(Problem(f"{found[1]} is set twice", Location(file, number)))
        else:
            settings[found[1]] = found[2].strip()
    return settings, problems


#: Longest names first, so that `vllm-ascend.patch` is not taken for a patch of vllm.
_REPOSITORIES = (
    "vllm-ascend",
    "vllm_ascend",
    "mindspeed-llm",
    "mindspeed",
    "megatron",
    "mbridge",
    "transformers",
    "mooncake",
    "vllm",
    "verl",
)


def _repository_of(file: Path) -> str:
    for text in (file.name.lower(), file.parent.name.lower()):
        for name in _REPOSITORIES:
            if text.startswith(name):
                return name.replace("_", "-")
    return "verl" if file.parent.name.startswith("patch") else ""


def _pin_name(upstream: str) -> str:
    return f"{upstream.upper().replace('-', '_')}_COMMIT"


def _series(folder: Path) -> Path | None:
    return next((file for file in (folder / "series", folder / "patches" / "series") if file.is_file()), None)


def _quilt(folder: Path) -> tuple[list[ImportedPatch], list[Problem]]:
    series = _series(folder)
    if series is None:
        raise InputError("this folder has no quilt series", where=Location(folder), fix="add a file `series`")
    patches: list[ImportedPatch] = []
    problems = []
    named = set()
    for number, line in enumerate(series.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        file = (series.parent / words[0]).resolve()
        where = Location(series, number)
        if not file.is_relative_to(series.parent.resolve()):
            problems.append(Problem(f"{words[0]} is outside the folder", where))
        elif not file.is_file():
            problems.append(Problem(f"there is no {words[0]}", where))
        else:
            named.add(file)
            patch = _read(file, "", "", series.parent.resolve())
            option = _STRIP.fullmatch(words[1]) if len(words) == 2 else None
            if option and option[1] != "ab":
                patch = replace(patch, data=with_one_component(patch.data, int(option[1])))
            elif len(words) > 1 and not option:
                problems.append(Problem(f"{words[0]} has the options {' '.join(words[1:])}", where))
            patches.append(patch)
    problems += [
        Problem(f"{file.name} is not in the series", Location(file), why=f"{series.name} does not name it")
        for file in patch_files(series.parent)
        if file.resolve() not in named
    ]
    return patches, problems


def _read(file: Path, upstream: str, pin: str, top: Path) -> ImportedPatch:
    return ImportedPatch(
        upstream=upstream,
        name=file.relative_to(top).as_posix(),
        pin=pin,
        file=file,
        data=read_patch_file(file),
    )


def _patch_problems(patch: ImportedPatch) -> list[Problem]:
    loaded = read_patch(patch.name, patch.data)
    if loaded.patch is None:
        error = loaded.error
        why = "git rejects such a patch, while GNU patch guesses what is meant" if error else ""
        return [
            Problem(
                error.why if error else "this patch cannot be parsed",
                Location(patch.file, error.line if error else 0),
                why=why,
            )
        ]
    problems = [
        Problem("this change comes after the end of its hunk and is ignored", Location(patch.file, line))
        for line in loaded.patch.stray
    ]
    if any(
        not hunk.leading and not hunk.trailing and hunk.old_count
        for file in loaded.patch.files
        for hunk in file.hunks
    ):
        problems.append(
            Problem(
                "a hunk has no context lines",
                Location(patch.file),
                why="git applies it only with --unidiff-zero, at its line number, without any check",
                fix="write the patch again with context lines",
            )
        )
    return problems
