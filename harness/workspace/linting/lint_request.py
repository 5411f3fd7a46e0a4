"""One call of `npu-matrix lint`: which scripts, for which versions, now and in an earlier revision."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.compat.lint.launch_script import script_bytes, script_of
from harness.compat.lint.lint_measurements import LintFinding, LintResult
from harness.compat.lint.lint_scripts import (
    lint_paths,
    lint_script,
    shell_scripts,
    starts_job,
    verl_configuration,
)
from harness.compat.lint.own_programs import with_own_programs
from harness.compat.lint.script_fixes import FixedScript, FixTrials
from harness.compat.lint.serving.server_findings import ServerSources
from harness.errors import InputError
from harness.plan.change.revision import (
    changed_files,
    extract_revision,
    renamed_files,
    resolve_comparison,
)
from harness.sources.tree import Tree


@dataclass(frozen=True, kw_only=True)
class LintRequest:
    """Scripts and folders to lint. verl: the files of the verl in `versions`, None if it is not given.

    engine: the files of the vllm-ascend in `versions`, None if they are not at hand. servers: the sources of
    vLLM, for the scripts that start its server.
    skip_others: leave out scripts that start no training job, instead of an error. cache: the cache folder.
    """

    paths: tuple[Path, ...]
    versions: Mapping[str, str]
    verl: Tree | None
    skip_others: bool = False
    cache: Path | None = None
    engine: Tree | None = None
    servers: ServerSources | None = None

    def result(self) -> LintResult:
        """The findings of the scripts as they are now. InputError as for `lint_paths`."""
        return lint_paths(
            self.paths,
            self.versions,
            self.verl,
            skip_others=self.skip_others,
            cache=self.cache,
            engine=self.engine,
            servers=self.servers,
        )

    def result_at(self, base: str) -> LintResult:
        """The findings in an earlier revision, with the names that the files have now.

        Empty for scripts that the revision does not have, or that started no job in it.
        """
        results = [self._result_of(path, base) for path in self.paths]
        return LintResult(findings=tuple(one for found in results for one in found.findings), undecided=())

    def _result_of(self, path: Path, base: str) -> LintResult:
        root = path if path.is_dir() else path.parent
        revision = resolve_comparison(root, base)
        moved = renamed_files(root, revision)
        names = {name: new for new, name in moved.items() if path.is_dir() or new == path.name}
        with tempfile.TemporaryDirectory(prefix="npu-matrix-lint-") as folder:
            before = extract_revision(root, revision, Path(folder))
            # Programs are not looked for above a folder that is a repository.
            (Path(folder) / ".git").mkdir()
            # The folder of the new name need not exist in the revision.
            olds = [Path(os.path.normpath(before / name)) for name in names]
            if path.is_dir() or not olds:
                olds.append(before if path.is_dir() else before / path.name)
            findings: list[LintFinding] = []
            for old in olds:
                with suppress(InputError):
                    findings += replace(self, paths=(old,)).result().findings
            found = {(one.file, one.line, one.column, one.rule, one.message): one for one in findings}
            return LintResult(
                findings=tuple(
                    replace(one, file=_new_name(one.file, before, root, names)) for one in found.values()
                ),
                undecided=(),
            )

    def fixed(self, findings: Collection[LintFinding]) -> tuple[FixedScript, ...]:
        """The scripts of this request for which fixes of these findings were tried and are plausible."""
        files = sorted({Path(finding.file) for finding in findings if finding.changes})
        files = [file for file in files if any(file.is_relative_to(path) for path in self.paths)]
        read = [(file, script_bytes(file)) for file in files if file.is_file()]
        scripts = [(file, script_of(data, file)) for file, data in read]
        tree = with_own_programs(self.verl, scripts) if self.verl and scripts else None
        with (
            nullcontext()
            if tree is None
            else verl_configuration(tree, self.cache, self.engine, self.servers).unpacked() as configuration
        ):

            def lint(file: Path, script: bytes) -> LintResult:
                return lint_script(script_of(script, file), self.versions, configuration, self.servers)

            return tuple(
                FixTrials(file, data, partial(lint, file)).fixed(findings.__contains__) for file, data in read
            )


def _new_name(file: str, before: Path, root: Path, names: Mapping[str, str]) -> str:
    """The present path of a file that an earlier revision has below `before`."""
    name = os.path.relpath(file, before)
    return str(root / names.get(name, name))


def changed_paths(paths: Sequence[Path], base: str) -> tuple[Path, ...]:
    """What to lint of a change: of a folder, the scripts that it modified, if all of them start a job."""
    return tuple(target for path in paths for target in (_changed(path, base) if path.is_dir() else (path,)))


def _changed(folder: Path, base: str) -> tuple[Path, ...]:
    differing = changed_files(folder, resolve_comparison(folder, base))
    names = {(folder / name).resolve() for name in (*differing.tracked, *differing.untracked)}
    scripts = shell_scripts(folder)
    if not any(name.suffix == ".sh" for name in names) or not any(map(starts_job, scripts)):
        return ()
    changed = tuple(script for script in scripts if script.resolve() in names)
    # Scripts that others read can change what unmodified ones do.
    return changed if changed and all(map(starts_job, changed)) else (folder,)
