"""Reads the section `suites`: test suites of upstreams."""

from __future__ import annotations

from pathlib import PurePosixPath

from harness.matrix.document.yaml_positions import NodePath
from harness.matrix.model.suite import LeftOutTest, Suite
from harness.matrix.reading.resolve_names import Entry, NameResolver, mapping, text, texts

#: Rules of `revision` that are no pattern of tags.
BY_CELL, BY_PACKAGE = "cell", "package"


def read_suite(resolver: NameResolver, name: str, entry: Entry) -> Suite:
    """The entry, which satisfies the schema; problems are added to `resolver`."""
    path: NodePath = ("suites", name)
    axis = resolver.axis((*path, "upstream"), upstream := text(entry["upstream"]))
    if axis is not None and not axis.repository:
        resolver.problem(
            (*path, "upstream"),
            f"the axis {upstream} has no repository",
            fix="add 'repository' to the axis",
        )
    submodule = text(entry.get("submodule", ""))
    repository = text(entry.get("repository", ""))
    if bool(submodule) != bool(repository):
        resolver.problem(
            path, "'submodule' and 'repository' belong together", fix="give both, or neither of them"
        )
    paths, tree = texts(entry["paths"]), texts(entry.get("tree", []))
    named = [*paths, *tree, submodule, text(entry.get("cwd", "")), text(entry.get("config", ""))]
    for one in named:
        if PurePosixPath(one).is_absolute() or ".." in PurePosixPath(one).parts:
            resolver.problem(path, f"{one!r} is outside the repository", fix="write a path inside it")
    _check_revision(resolver, path, entry)
    return Suite(
        name=name,
        title=text(entry["title"]),
        upstream=upstream,
        source=text(entry["source"]),
        revision=tuple(texts(entry["revision"])),
        repositories=axis.addresses if axis else (),
        conditions=resolver.conditions((*path, "when"), entry["when"]) if "when" in entry else (),
        submodule=submodule,
        submodule_repositories=(repository,) if repository else (),
        tree=tuple(tree or dict.fromkeys(PurePosixPath(one).parts[0] for one in paths if one)),
        paths=tuple(paths),
        device=entry.get("device", "npu"),
        cwd=text(entry.get("cwd", "")),
        python_path=tuple(texts(entry.get("python_path", []))),
        config=text(entry.get("config", "")),
        env=mapping(entry.get("env")),
        preload=tuple(texts(entry.get("preload", []))),
        cards=entry.get("cards", 1),
        requirements=tuple(texts(entry.get("requirements", []))),
        left_out=tuple(
            LeftOutTest(test=text(one["test"]), reason=text(one["reason"]))
            for one in entry.get("leave_out", [])
        ),
        test_seconds=entry.get("test_seconds", 120),
        file_seconds=entry.get("file_seconds", 900),
        memory_mib=entry.get("memory_mib", 6144),
        disabled=text(entry.get("disabled", "")),
        where=resolver.document.where(path, key=True),
    )


def _check_revision(resolver: NameResolver, path: NodePath, entry: Entry) -> None:
    for index, rule in enumerate(texts(entry["revision"])):
        if rule not in {BY_CELL, BY_PACKAGE} and "{version}" not in rule:
            resolver.problem(
                (*path, "revision", index) if isinstance(entry["revision"], list) else (*path, "revision"),
                f"{rule!r} names the same revision for every version",
                fix="write `cell`, `package`, or a pattern of tags such as v{version}",
            )
