"""How many findings of `lint` are right, in a sample of 200 from the scripts of five versions of verl.

The scripts are linted as jobs for NPUs. What Hydra is said to refuse is composed again by Hydra itself, in a
process of its own, without all other refused overrides. All other findings are judged by what was read in the
release or measured (`lint_judgements.yaml`); a finding without a judgement counts as wrong. The repositories
must be among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.figures import Figure
from benchmarks.hydra_reference import HydraReference, hydra_reference
from benchmarks.lint_agreement import check_out, verl_repository
from harness.compat.lint.config_findings import compose_job
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.lint_measurements import CONFIG_RULE, LintFinding
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError
from harness.sources.tree import Tree

SAMPLE, SCRIPTS = 200, 22
SCRIPT = re.compile(r"(?:examples|recipe)/.*\.sh")
#: Tags of verl with the versions that a job on them has.
STACKS = {
    "v0.6.1": {"verl": "0.6.1", "vllm_ascend": "0.11.0", "cann": "8.5.0"},
    "v0.7.1": {"verl": "0.7.1", "vllm_ascend": "0.13.0", "cann": "8.5.0"},
    "v0.8.0": {"verl": "0.8.0", "vllm_ascend": "0.18.0", "cann": "8.5.0"},
    "v0.9.0": {"verl": "0.9.0", "vllm_ascend": "0.23.0", "cann": "8.5.0"},
    "main": {"verl": "0.9.1", "vllm_ascend": "0.23.0", "cann": "8.5.0"},
}
JUDGEMENTS = Path(__file__).with_name("lint_judgements.yaml")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How findings of a rule were judged. text: in their message, "" for all."""

    rule: str
    right: bool
    judged: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A finding, and whether it is right."""

    finding: LintFinding
    place: str
    right: bool


def digest(text: str) -> str:
    """A number that chooses scripts and findings, and does not depend on what they are."""
    return hashlib.sha256(text.encode()).hexdigest()


def judged_findings(tag: str, tree: Tree, judgements: Sequence[Judgement]) -> Iterator[Judged]:
    """Every finding in the chosen scripts of one version."""
    paths = sorted((path for path in tree.paths() if SCRIPT.fullmatch(path)), key=digest)[:SCRIPTS]
    with tempfile.TemporaryDirectory(prefix="npu-matrix-checkout-") as name:
        check_out(tree, Path(name, "checkout"))
        with (
            hydra_reference(Path(name, "checkout")) as hydra,
            VerlConfiguration(tree).unpacked() as configuration,
        ):
            for path in paths:
                try:
                    script = parse_script(tree.read(path).decode("utf-8", "replace"), path)
                except InputError:
                    continue
                for job in script.jobs:
                    refused = refused_overrides(job, configuration)
                    for finding in lint_job(job, STACKS[tag], configuration=configuration).findings:
                        right = (
                            is_refused(job, finding, refused, hydra)
                            if finding.rule == CONFIG_RULE
                            else is_right(finding, judgements)
                        )
                        place = f"{tag} {path}:{finding.line}"
                        yield Judged(finding=finding, place=place, right=right)


def refused_overrides(job: JobSettings, configuration: VerlConfiguration) -> list[ScriptValue]:
    """The overrides of a job that `lint` says Hydra refuses."""
    composed = compose_job(job, configuration)
    return [one.override for one in composed[1].refused] if composed else []


def is_refused(
    job: JobSettings, finding: LintFinding, refused: Sequence[ScriptValue], hydra: HydraReference
) -> bool:
    """Whether Hydra refuses the override of a finding, without the others that are refused."""
    here = (finding.line, finding.column)
    kept = [one for one in job.arguments if one not in refused or (one.where.line, one.where.column) == here]
    words = [f"{name}={value}" for name, value in job.options.items()]
    words += [re.sub(r"\$\{?(\w+)\}?|\$\(.*\)|`.*`", "given", one.text) for one in kept]
    composed = hydra.compose(job.entry, words)
    return composed is not None and bool(composed.refused)


def is_right(finding: LintFinding, judgements: Sequence[Judgement]) -> bool:
    """The judgement on a finding; one that was not judged is wrong."""
    for judgement in judgements:
        if judgement.rule == finding.rule and judgement.text in finding.message:
            return judgement.right
    return False


def figures() -> Iterator[Figure]:
    judgements = [Judgement(**one) for one in yaml.safe_load(JUDGEMENTS.read_text())]
    repository = verl_repository()
    every = [one for tag in STACKS for one in judged_findings(tag, repository.tree(tag), judgements)]
    distinct = {f"{one.place} {one.finding.rule} {one.finding.message}": one for one in every}
    sample = [distinct[name] for name in sorted(distinct, key=digest)[:SAMPLE]]
    for one in sample:
        if not one.right:
            logging.getLogger(__name__).warning("wrong: %s %s", one.place, one.finding)
    errors = [one for one in sample if one.finding.severity == "error"]
    for chosen, kind, limit in ((errors, "errors", 97), (sample, "findings of all levels", 93)):
        yield Figure(
            claim=f"of {len(chosen)} {kind} in a sample of {len(sample)}, those that are right",
            measured=round(100 * sum(one.right for one in chosen) / max(1, len(chosen)), 1),
            unit="%",
            limit=limit,
            is_lower_limit=True,
        )
