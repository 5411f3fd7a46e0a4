"""Do the names verl and vllm-ascend take from other packages exist in the versions of the cell?

What breaks while a module is imported that every training imports fails the cell. What breaks only when some
function runs is said, and does not: nobody knows from the text whether a recipe gets there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness.check import TaskContext
from harness.compat.analysis import analyse
from harness.compat.border import BorderFinding, check_border
from harness.compat.module_names import parse
from harness.compat.published import commit_sources, fetch_sources, newest_version, required
from harness.compat.reach import references, references_in
from harness.compat.surface import Surface
from harness.errors import InputError
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status
from harness.sources.lockfile import normal_name
from harness.sources.mirrors import mirrors_folder
from harness.sources.release import ReleaseNotFoundError, RunCommand

MOST_SAID = 12


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A package, whose names it takes, and the modules every training imports (entry points and workers)."""

    package: str
    providers: tuple[str, ...]
    roots: tuple[str, ...]


CONSUMERS = (
    Consumer(
        package="verl",
        providers=("transformers", "tensordict", "ray"),
        roots=("verl.trainer.main_ppo", "verl.workers.fsdp_workers", "verl.workers.engine_workers"),
    ),
    Consumer(
        package="vllm-ascend",
        providers=("vllm", "transformers"),
        roots=(
            "vllm_ascend.platform",
            "vllm_ascend.worker.worker",
            "vllm_ascend.worker.worker_v1",
            "vllm_ascend.worker.model_runner_v1",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where sources come from: the index through `command`, and mirrors for commits; kept in `cache`."""

    cache: Path
    command: RunCommand
    mirrors: Path | None

    def of(self, package: str, version: str, commit: str = "") -> Path | None:
        """The sources of a release or commit, None when they are not at hand."""
        if commit:
            return commit_sources(commit, cache=self.cache, mirrors=self.mirrors)
        try:
            return fetch_sources(package, version, cache=self.cache, command=self.command)
        except ReleaseNotFoundError:
            return None


def gather(packages: Mapping[str, str], verl_tree: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """What `examine` needs, with the sources of the consumers among `packages` (name -> version) fetched."""
    versions = {normal_name(name): version for name, version in packages.items()}
    commits = {}
    if verl_tree["version"]:
        versions["verl"] = verl_tree["version"]
        commits["verl"] = verl_tree.get("commit", "")
    wanted = [
        name
        for consumer in CONSUMERS
        if consumer.package in versions
        for name in (consumer.package, *consumer.providers)
        if name in versions
    ]
    files = {name: source.of(name, versions[name], commits.get(name, "")) for name in dict.fromkeys(wanted)}
    return {
        "versions": {name: versions[name] for name in files},
        "files": {name: str(file) for name, file in files.items() if file},
        "not_read": [
            f"{name} {commits.get(name, '')[:12] or versions[name]}"
            for name, file in files.items()
            if not file
        ],
    }


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the consumers use that the others do not have: the measurements of check `api`."""
    versions = request["versions"]
    surfaces = {name: Surface(Path(file)) for name, file in request["files"].items()}
    facts: dict[str, Any] = {"pairs": [], "not_read": request["not_read"], "findings": [], "uses": {}}
    for consumer in CONSUMERS:
        own = surfaces.get(consumer.package)
        providers = [name for name in consumer.providers if name in surfaces]
        if own is None or not providers:
            continue
        uses, wrong = check_consumer(own, {f"{name} {versions[name]}": surfaces[name] for name in providers})
        reached = imported_modules(own, consumer.roots)
        facts["uses"][consumer.package] = uses
        facts["pairs"] += [[consumer.package, versions[consumer.package], n, versions[n]] for n in providers]
        for finding in wrong:
            always = finding.breaks and finding.at_import and _module(finding.file) in reached
            facts["findings"].append({**finding.to_json(), "consumer": consumer.package, "always": always})
    return facts


def check_consumer(
    consumer: Surface, providers: Mapping[str, Surface]
) -> tuple[int, tuple[BorderFinding, ...]]:
    """How many uses there are, and those the providers ("name version" -> surface) do not bear."""
    tops = {top: (label, surface) for label, surface in providers.items() for top in surface.packages}
    uses = references(consumer, tops)
    return len(uses), check_border(uses, tops)


def imported_modules(consumer: Surface, roots: tuple[str, ...]) -> frozenset[str]:
    """The package's modules that importing the roots imports, unless a guard stands before it."""
    files = dict(consumer.files())
    waiting = [root for root in roots if root in files]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in reached or module not in files:
            continue
        reached.add(module)
        waiting.append(module.rpartition(".")[0])
        source = consumer.source(module)
        tree = parse(source)
        if tree is None:
            continue
        for use in references_in(tree, source, module, files[module], {module.partition(".")[0]}):
            if use.kind == "import" and use.at_import and not use.guarded:
                waiting += [use.target, use.target.rpartition(".")[0]]
    return frozenset(reached)


def stated_versions(pins: Mapping[str, Any]) -> dict[str, str]:
    """Package -> the exact version the cell states; an override wins, builds from source are left out."""
    found = {}
    for text in (*pins["requirements"], *pins["overrides"]):
        wanted = Requirement(text)
        exact = [one.version for one in wanted.specifier if one.operator == "==" and "*" not in one.version]
        if exact:
            found[normal_name(wanted.name)] = exact[0]
    return found


def with_newest(
    packages: Mapping[str, str], pins: Mapping[str, Any], tree: Mapping[str, Any], source: Source
) -> dict[str, str]:
    """The same with the newest version of what verl takes names from, where only a range is stated.

    That is the version a resolution takes, unless a third package stands against it.
    """
    file = source.of("verl", tree["version"], tree.get("commit", ""))
    ranges: dict[str, list[str]] = {name: [] for name in CONSUMERS[0].providers if name not in packages}
    for text in (*pins["requirements"], *(required(file) if file else ())):
        wanted = Requirement(text)
        if normal_name(wanted.name) in ranges and (wanted.marker is None or wanted.marker.evaluate()):
            ranges[normal_name(wanted.name)].append(str(wanted.specifier))
    newest = {}
    for name, specifiers in ranges.items():
        version = newest_release(name, ",".join(filter(None, specifiers)), source) if specifiers else ""
        if version:
            newest[name] = version
    return {**packages, **newest}


def newest_release(package: str, specifier: str, source: Source) -> str:
    """The newest release within a range, or "" when the index has none."""
    try:
        return newest_version(f"{package}{specifier}", cache=source.cache, command=source.command)
    except ReleaseNotFoundError:
        return ""


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def holds(outcome: Outcome) -> str:
    """An outcome without a commit no longer holds once there may be a mirror that has it."""
    unread = outcome.measurements.get("not_read")
    return "there is a folder of mirrors now" if unread and mirrors_folder() else ""


def run(ctx: TaskContext) -> Measured:
    """Hold the packages of facet `pins` against each other."""
    source = Source(cache=ctx.cache, command=ctx.command, mirrors=mirrors_folder())
    tree = ctx.facets["verl_tree"]
    packages = stated_versions(ctx.facets["pins"])
    if source.of("verl", tree["version"], tree.get("commit", "")):
        packages = with_newest(packages, ctx.facets["pins"], tree, source)
    facts = analyse(ctx, "api", gather(packages, tree, source))
    for finding in facts["findings"]:
        ctx.log(f"{'breaks' if finding['breaks'] else 'guarded'}: {said(finding)}")
    return Measured(measurements=facts, evidence=Evidence.STATIC)


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """What breaks every training fails; what breaks a function is said; what could not be read is not run."""
    findings = [finding for finding in measurements["findings"] if finding["breaks"]]
    always = [finding for finding in findings if finding["always"]]
    unread = [f"Not looked at: {text} is not at hand." for text in measurements["not_read"]]
    if not measurements["pairs"]:
        return Judgement(
            status=Status.NOT_RUN, reasons=tuple(unread) or ("No package of the cell is known.",)
        )
    reasons = [f"{said(finding)}." for finding in always]
    later = [f"Only when it is called: {said(finding)}." for finding in findings if not finding["always"]]
    rest = [f"{len(later) - MOST_SAID} more such."] if len(later) > MOST_SAID else []
    looked = "; ".join(f"{a} {b} against {c} {d}" for a, b, c, d in measurements["pairs"])
    providers = sorted({finding["provider"] for finding in always})
    return Judgement(
        status=Status.FAIL if always else Status.NOT_RUN if unread else Status.PASS,
        reasons=(*reasons, *unread, *([] if always else [f"{looked}."]), *later[:MOST_SAID], *rest),
        remedies=tuple(f"Choose another version than {provider}." for provider in providers),
    )


def said(finding: Mapping[str, Any]) -> str:
    """A finding as one line."""
    return f"{finding['file']}:{finding['line']}: {finding['text']} ({finding['provider']})"


def read_release(spec: str, source: Source) -> tuple[str, Surface]:
    """`name==version` as "name version" and its surface; InputError when it is no such thing."""
    name, equals, version = spec.partition("==")
    if not equals:
        raise InputError(f"{spec!r} names no release", fix="write it like transformers==5.5.4")
    file = source.of(name, version)
    if file is None:
        raise InputError(f"the package index has no {name} {version}", fix="choose a published version")
    return f"{name} {version}", Surface(file)
