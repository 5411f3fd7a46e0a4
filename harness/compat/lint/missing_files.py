"""Findings of the rule NO-FILE: files that a setting names, in folders of verl's repository without them."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator

from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding

MISSING_FILE_RULE = "NO-FILE"
#: A file below a folder of the repository, which jobs are started in.
_FILE = re.compile(
    r"(?:\./|(?:\$\{?PWD\}?|\$\(pwd\)|`pwd`)/)?(?P<path>(?P<folder>verl|recipe|examples)/[\w./-]+\.\w+)"
)


def missing_file_findings(job: JobSettings, configuration: VerlConfiguration) -> Iterator[LintFinding]:
    """Settings whose value is the path of a file in a folder of this verl that does not have the file."""
    paths = configuration.paths
    for key, setting in job.overrides.items():
        found = _FILE.fullmatch(setting.text.strip("'\""))
        if found is None or found["path"] in paths or key.startswith("data."):
            continue
        path = posixpath.normpath(found["path"])
        files = [one for one in paths if one.startswith(f"{found['folder']}/")]
        if path in files or len(files) < 2:
            continue
        near = difflib.get_close_matches(path, sorted(files), n=1, cutoff=0.8)
        yield LintFinding.at(
            setting.where,
            rule=MISSING_FILE_RULE,
            severity="warning",
            message=f"{configuration.label} has no file {path}",
            why=f"{key} is a path from the folder in which the job starts, and the repository of verl has "
            f"a folder {found['folder']} without this file",
            fix=f"did you mean {near[0]}?" if near else "give the path of a file that exists",
            source=f"the files of {configuration.label}",
            recipe=job.name,
        )
