"""Whether `lint` agrees with bash and Hydra about the example scripts of verl.

bash runs every script in a sandbox whose programs are stubs, and Hydra composes what the script really
passes. `lint` must know every job that bash starts, refuse what Hydra refuses and nothing else, and get the
values that Hydra gets. The repositories must be among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import logging
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import normpath
from typing import Any

from benchmarks.figures import CannotRunError, Figure, user_cache
from benchmarks.hydra_reference import Composed, HydraReference, hydra_reference
from benchmarks.recorded_runs import RecordedRun, Sandbox, sandbox
from harness.compat.lint.config_findings import compose_job
from harness.compat.lint.hydra_compose import UNKNOWN_VALUE, Composition, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import LaunchScript, parse_script
from harness.compat.lint.python_program import CONFIG_OPTIONS
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_clone, mirror_folders
from harness.sources.packages.archive import open_archive
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.tree import SYMLINK, OverlayTree, Tree, TreeFile, path_problem
from harness.workspace.downloads import run_quietly

REPOSITORIES = ("verl-project/verl", "volcengine/verl")
RECIPES = "verl-project/verl-recipe"
PLUGIN = "Ascend/MindSpeed-RL"
ASCEND = "vllm-project/vllm-ascend"
# Each tag of verl, and the commit of RECIPES that is its submodule `recipe`; v0.6.1 has its recipes itself.
TAGS = {
    "v0.6.1": "",
    "v0.7.1": "6d8d5c129334f40b463dc7e383cf269358352fd6",
    "v0.8.0": "e7f889574b8301cc0f0fc1d57c6d67f31ffeb689",
    "v0.9.0": "e7f889574b8301cc0f0fc1d57c6d67f31ffeb689",
    "main": "e7f889574b8301cc0f0fc1d57c6d67f31ffeb689",
}
# The scripts of the plugin verl_npu, and the release of verl that its documentation installs.
PLUGIN_COMMIT, PLUGIN_SCRIPTS, PLUGIN_VERL = (
    "05a90d77cb6cfad8999e2aee21068284db959579",
    "tests/verl_examples/",
    "v0.6.1",
)
SCRIPTS = re.compile(r"(?:examples|recipe)/.*\.sh")
PLUGIN_PLACE = re.compile(r"recipe/verl_npu/.*\.sh")
# The folders that scripts and configurations of a checkout are in.
CHECKED_OUT = re.compile(r"(?:examples|recipe|verl)/.*")
CHECKOUT = re.compile(r"/(?:[\w.-]+/)*npu-matrix-checkout-\w+/checkout/")
GIVEN = re.compile(r"\$\{[^}]*\}|\$\(.*\)|\$\w+|`[^`]*`")
OUTSIDE = re.compile(rf"{UNKNOWN_VALUE}\w+")
NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class ScriptAgreement:
    """How `lint` and bash with Hydra see one script.

    runs: the programs that bash started. composed: those of them that Hydra starts. refused: those that Hydra
    refuses. disagreements: sentences. unread: why `lint` did not read the script, or "".
    """

    script: str
    runs: int = 0
    composed: int = 0
    refused: int = 0
    disagreements: tuple[str, ...] = ()
    unread: str = ""


def compare_checkout(tree: Tree, scripts: re.Pattern[str] = SCRIPTS) -> Iterator[ScriptAgreement]:
    """Compare every script of a checkout of verl."""
    with tempfile.TemporaryDirectory(prefix="npu-matrix-checkout-") as name:
        checkout = Path(name) / "checkout"
        check_out(tree, checkout)
        Path(name).chmod(0o755)
        with (
            sandbox(checkout) as bash,
            hydra_reference(checkout) as hydra,
            VerlConfiguration(tree).unpacked() as configuration,
        ):
            for path in sorted(path for path in tree.paths() if scripts.fullmatch(path)):
                yield compare_script(path, checkout, bash, hydra, configuration)


def compare_script(
    path: str, checkout: Path, bash: Sandbox, hydra: HydraReference, configuration: VerlConfiguration
) -> ScriptAgreement:
    """Compare one script."""
    file = checkout / path
    try:
        script = parse_script(file.read_text("utf-8"), path, file.parent)
    except (InputError, UnicodeDecodeError) as error:
        return ScriptAgreement(script=path, unread=" ".join(str(error).split())[:200])
    runs = bash.runs(path, {}) or bash.runs(path, _variables(script))
    disagreements: list[str] = []
    composed = refused = 0
    for run in dict.fromkeys(map(_without_outside, runs)):
        truth = hydra.compose(run.entry, run.words)
        if truth is None:
            continue
        composed += 1
        refused += bool(truth.refused)
        problem = _disagreement(run, truth, script, configuration)
        disagreements += [problem] if problem else []
    return ScriptAgreement(
        script=path,
        runs=len(runs),
        composed=composed,
        refused=refused,
        disagreements=tuple(dict.fromkeys(disagreements)),
        unread="" if script.jobs or not composed else "no job",
    )


def _disagreement(
    run: RecordedRun, truth: Composed, script: LaunchScript, configuration: VerlConfiguration
) -> str:
    """How `lint` sees a program that bash started otherwise; "" if it agrees."""
    jobs = [job for job in script.jobs if _is_job_of(run, job)]
    if not jobs:
        return f"no job of lint is this run of {run.entry}: {_nearest(run, script.jobs)}"
    problems = []
    for job in jobs:
        made = compose_job(job, configuration)
        if made is None:
            problems.append(f"lint knows no configuration of {run.entry}")
            continue
        problem = _other_composition(made[1], truth)
        if not problem:
            return ""
        problems.append(problem)
    return problems[0]


def _other_composition(composition: Composition, truth: Composed) -> str:
    found = [*(one.message for one in composition.refused), *filter(None, [composition.problem])]
    if truth.refused and not found:
        return f"Hydra refuses, lint does not: {' '.join(truth.refused.split())[:300]}"
    if found and not truth.refused:
        return f"lint refuses, Hydra does not: {found[0][:300]}"
    if truth.refused or composition.incomplete:
        return ""
    # Hydra's own settings are no part of what a program gets.
    found_values = {name: value for name, value in composition.values.items() if name != "hydra"}
    return next(_other_values(truth.values, found_values), "")


def _other_values(truth: Any, found: Any, path: str = "") -> Iterator[str]:
    """Differences of two configurations; what only a run knows is equal to anything."""
    if isinstance(truth, str) and "${" in truth:
        return
    if any(isinstance(one, str) and UNKNOWN_VALUE in one for one in (truth, found)):
        return
    if isinstance(found, str) and "${" in found:
        return
    if isinstance(truth, Mapping) and isinstance(found, Mapping):
        for name in dict.fromkeys([*truth, *found]):
            below = f"{path}.{name}" if path else str(name)
            if str(name) not in truth or str(name) not in found:
                yield f"only {'lint' if str(name) in found else 'Hydra'} has {below}"
            else:
                yield from _other_values(truth[name], found[name], below)
        return
    if isinstance(truth, Sequence) and isinstance(found, Sequence) and not isinstance(truth, str):
        if len(truth) != len(found):
            yield f"{path} is {found} for lint and {truth} for Hydra"
        for index, (left, right) in enumerate(zip(truth, found, strict=False)):
            yield from _other_values(left, right, f"{path}.{index}")
        return
    if isinstance(truth, str) and isinstance(found, str):
        truth, found = _plain_path(CHECKOUT.sub("", truth)), _plain_path(found)
    both_nan = (
        isinstance(truth, float) and isinstance(found, float) and math.isnan(truth) and math.isnan(found)
    )
    if truth != found and not both_nan:
        yield f"{path} is {found!r} for lint and {truth!r} for Hydra"


def _plain_path(text: str) -> str:
    return normpath(text) if "/.." in text or text.startswith("./") else text


def _variables(script: LaunchScript) -> dict[str, str]:
    """Values for the variables that a script expects from outside, those that `lint` uses for them."""
    values = [word for job in script.jobs for word in (*job.arguments, *job.env.values())]
    names = {word.unknown for word in values if NAME.fullmatch(word.unknown)}
    return {name: f"{UNKNOWN_VALUE}{name}" for name in sorted(names - {"HOME", "PATH"})}


def _without_outside(run: RecordedRun) -> RecordedRun:
    """The run without the words that stand for further arguments from outside."""
    return replace(run, words=tuple(word for word in run.words if not OUTSIDE.fullmatch(word)))


def _nearest(run: RecordedRun, jobs: Sequence[JobSettings]) -> str:
    """The words of bash that the job of `lint` with the fewest such words does not have."""
    words = list(_overrides(run.words))
    missing = [
        [word for word in words if not any(_fits(word_pattern(one), word) for one in job.arguments)]
        for job in jobs
    ]
    fewest = min(missing, key=len) if missing else words
    return ", ".join(fewest)[:400] or "the order or number of words"


def _is_job_of(run: RecordedRun, job: JobSettings) -> bool:
    """Whether a job of `lint` is the program that bash started."""
    entry = ScriptValue(text=job.entry, where=job.where, unknown="x" if "$" in job.entry else "")
    if not word_pattern(entry).fullmatch(run.entry):
        return False
    words = list(_overrides(run.words))
    expected = [word_pattern(word) for word in job.arguments]
    position = 0
    for pattern in expected:
        while job.has_unread_arguments and position < len(words) and not _fits(pattern, words[position]):
            position += 1
        if position >= len(words) or not _fits(pattern, words[position]):
            return False
        position += 1
    return job.has_unread_arguments or position == len(words)


def _fits(pattern: re.Pattern[str], word: str) -> bool:
    """Whether bash's word is what `lint` expects, which knows no absolute path of the checkout.

    A value from outside can stand where the script has a default, which it does not use then.
    """
    if UNKNOWN_VALUE in word:
        return pattern.pattern.startswith(re.escape(word.partition("=")[0]))
    return any(pattern.fullmatch(one) for one in (word, CHECKOUT.sub("", word), CHECKOUT.sub("./", word)))


def _overrides(words: Sequence[str]) -> Iterator[str]:
    """The words that Hydra takes as overrides."""
    for position, word in enumerate(words):
        if not word.startswith("-") and not (position and words[position - 1] in CONFIG_OPTIONS):
            yield word


def word_pattern(word: ScriptValue) -> re.Pattern[str]:
    """The words that a word of `lint` can be."""
    if not word.unknown:
        start, equals, path = word.text.partition("=")
        text = start + equals + normpath(path) if "/.." in path else word.text
        return re.compile(re.escape(text), re.DOTALL)
    parts = [re.escape(part) for part in GIVEN.split(word.text)]
    if len(parts) == 1:
        parts = [re.escape(f"{word.text.partition('=')[0]}="), ""]
    return re.compile(".*".join(parts), re.DOTALL)


def check_out(tree: Tree, folder: Path) -> None:
    """Write the scripts and configurations of a checkout to a folder."""
    for path in tree.paths():
        if not CHECKED_OUT.fullmatch(path) or path_problem(path) or tree.mode(path) == SYMLINK:
            continue
        if path.endswith((".sh", ".yaml", ".py", ".json", ".env")):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tree.read(path))
    for made in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        made.chmod(0o777)  # scripts make folders for their logs


def verl_repository() -> Repository:
    """The clone of verl; CannotRunError without one."""
    clones = [clone for name in REPOSITORIES if (clone := find_clone(mirror_folders(), name)) is not None]
    verl = next((clone for clone in clones if clone.has_tag("v0.9.0")), None)
    if verl is None:
        raise CannotRunError(
            "no mirror has verl 0.9.0", "set NPU_MATRIX_MIRRORS to a folder with a clone of verl"
        )
    return verl


def ascend_repository() -> Repository:
    """The clone of vllm-ascend; CannotRunError without one."""
    found = find_clone(mirror_folders(), ASCEND)
    if found is None:
        raise CannotRunError(
            "no mirror has vllm-ascend", "set NPU_MATRIX_MIRRORS to a folder with a clone of vllm-ascend"
        )
    return found


def checkouts() -> Iterator[tuple[str, Tree]]:
    """Each tag of verl with its recipes, 0.9.1, and the plugin's scripts; CannotRunError without verl."""
    mirrors, verl = mirror_folders(), verl_repository()
    recipes, plugin = find_clone(mirrors, RECIPES), find_clone(mirrors, PLUGIN)
    for tag, commit in TAGS.items():
        tree: Tree = verl.tree(tag)
        if commit and recipes is not None:
            tree = with_files(tree, recipes.tree(commit), "", "recipe/")
        yield f"verl {tag}", tree
    # The release has no scripts and no tag: the files of its wheel, with the scripts of the release before.
    wheel, _archive = ReleaseFetcher(cache=user_cache(), command=run_quietly).archive("verl", "0.9.1")
    scripts_before = with_files(open_archive(wheel), verl.tree("v0.9.0"), "examples/", "examples/")
    yield "verl 0.9.1, scripts of v0.9.0", scripts_before
    if plugin is not None:
        files = plugin.tree(PLUGIN_COMMIT)
        yield (
            f"verl_npu on verl {PLUGIN_VERL}",
            with_files(verl.tree(PLUGIN_VERL), files, PLUGIN_SCRIPTS, "recipe/verl_npu/"),
        )


def with_files(tree: Tree, other: Tree, start: str, place: str) -> Tree:
    """A tree with those files of another one whose paths begin with `start`, below `place`."""
    paths = [path for path in other.paths() if path.startswith(start) and other.mode(path) != SYMLINK]
    added = {place + path.removeprefix(start): TreeFile(data=other.read(path)) for path in paths}
    return OverlayTree(base=tree, changes=added)


def figures() -> Iterator[Figure]:
    every: list[ScriptAgreement] = []
    for name, tree in checkouts():
        scripts = PLUGIN_PLACE if name.startswith("verl_npu") else SCRIPTS
        found = list(compare_checkout(tree, scripts))
        every += found
        runs = [one for one in found if one.runs]
        composed = sum(one.composed for one in found)
        wrong = [problem for one in found for problem in one.disagreements]
        for one in found:
            for problem in [*one.disagreements, *filter(None, [one.unread])]:
                logging.getLogger(__name__).warning("%s %s: %s", name, one.script, problem)
        yield Figure(
            claim=f"{name}: of {len(found)} scripts ({len(runs)} start Python), those not read",
            measured=sum(bool(one.unread) for one in found),
            limit=0,
        )
        yield Figure(
            claim=f"{name}: of {composed} configurations ({sum(one.refused for one in found)} refused), "
            "those that Hydra composes otherwise",
            measured=len(wrong),
            limit=0,
        )
    read = sum(not one.unread for one in every)
    yield Figure(
        claim=f"of {len(every)} scripts of all checkouts, those read",
        measured=100 * read / max(1, len(every)),
        unit="%",
        limit=99,
        is_lower_limit=True,
    )
