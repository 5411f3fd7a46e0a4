"""Mistakes that were written into launch scripts, each with the lines at which a finding helps.

They are those of people who have started such jobs: sizes that do not go into each other, names of another
release, slips of bash. Whoever wrote a set (`lint_written_slips.yaml`) ran `lint` on it once; at that time it
found 68 % of the seventh, 59 % of the eighth, 67 % of the ninth, 55 % of the eleventh, of which a half, by a
digest of the kinds, was then looked at, 62 % of the twelfth, which was looked at, and 68 % of the thirteenth,
which is only counted. The fourteenth and the fifteenth are mistakes that people reported of their scripts, or
that reviews of verl's scripts found, and that the script and verl show; a digest of the kinds parted them. Of
the fourteenth it found 70 %, and of the fifteenth, which is only counted, 48 % after it had been changed for
the fourteenth. Rules for some of its kinds were written later by somebody who had written the set: a figure
above 48 % is not one of mistakes that nobody knew. Sets 16 and 18, which were looked at, and 17 and 19, which
are only counted, are of other reports and were parted in the same way: of the eighteenth it found 91 % and
of the nineteenth 57 % before it was changed for either. Sets 20, which was looked at, and 21, which is only
counted, are settings that a check of vllm-ascend, of vLLM or of verl refuses, and variables of Ray: 29 % and
33 % were found before the checks of vllm-ascend were followed.
Sets 22, which was looked at, and 23, which is only counted, are commands that start the server of vLLM,
variables of torch_npu and Ray, and settings of loops of agents: 15 % and 23 % were found before such
commands were read. A mistake is found if `lint` reports an error or a warning at one of its lines, or says
that it did not read a part, and does not say so of the script without it.
The repositories of verl and vllm-ascend must be among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from benchmarks.figures import CannotRunError, Figure, user_cache
from benchmarks.lint_agreement import ascend_repository, verl_repository
from benchmarks.lint_launch_slips import STACKS
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_scripts import lint_script
from harness.compat.lint.serving.server_findings import ServerSources
from harness.errors import InputError
from harness.sources.git.mirrors import find_mirror, mirror_folders
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.tree import Tree
from harness.workspace.downloads import run_quietly
from harness.workspace.linting.given_versions import tree_of_vllm

SLIPS = Path(__file__).with_suffix(".yaml")
#: The sets of which misses are counted only.
COUNTED = (13, 15, 17, 19, 21, 23)


@dataclass(frozen=True, kw_only=True)
class Slip:
    """An entry of the file.

    commit: of the repository that has the script, "" for verl's own. source: who made the mistake, "" for one
    that was thought of. text: the script itself, if no repository has it.
    """

    kind: str
    set: int
    tag: str
    script: str
    old: str
    new: str
    at: tuple[str, ...]
    commit: str = ""
    source: str = ""
    text: str = ""


def told(
    text: str, slip: Slip, verl: VerlConfiguration, servers: ServerSources, at: tuple[str, ...]
) -> set[str]:
    """What `lint` says of a script: errors and warnings at these lines, and what it did not read."""
    try:
        script = parse_script(text, slip.script)
    except InputError as error:
        return {str(error)}
    if not script.jobs and not script.servers:
        # The command refuses a script that starts no job.
        return {"no job"}
    result, lines = lint_script(script, STACKS[slip.tag], verl, servers), text.split("\n")
    here = {
        f"{one.rule} {one.message}"
        for one in result.findings
        if one.severity != "note" and any(part in lines[one.line - 1] for part in at)
    }
    return here | {note.text for note in result.notes if note.unread}


def found(slip: Slip, tree: Tree, verl: VerlConfiguration, servers: ServerSources) -> bool:
    """Whether `lint` says something new about the script with the mistake, at one of its lines."""
    if slip.commit:
        other = find_mirror(mirror_folders(), slip.commit)
        if other is None:
            raise CannotRunError(f"no mirror has {slip.commit}", "clone the repository with its script")
        tree = other.tree(slip.commit)
    text = slip.text or tree.read(slip.script).decode()
    assert slip.old in text, slip
    before = told(text, slip, verl, servers, ("",))
    return bool(told(text.replace(slip.old, slip.new, 1), slip, verl, servers, slip.at) - before)


def _same(tree: Tree) -> Tree:
    return tree


def figures() -> Iterator[Figure]:
    slips = [Slip(**{**one, "at": tuple(one["at"])}) for one in yaml.safe_load(SLIPS.read_text("utf-8"))]
    results: dict[int, list[bool]] = {}
    releases = ReleaseFetcher(cache=user_cache(), command=run_quietly)
    for tag in STACKS:
        tree = verl_repository().tree(tag)
        engine = ascend_repository().tree(f"v{STACKS[tag]['vllm_ascend']}")
        servers = ServerSources(
            fetch_vllm=partial(tree_of_vllm, STACKS[tag], releases), fetch_ascend=partial(_same, engine)
        )
        with VerlConfiguration(tree, engine=engine).unpacked() as verl:
            for slip in (one for one in slips if one.tag == tag):
                is_found = found(slip, tree, verl, servers)
                results.setdefault(slip.set, []).append(is_found)
                if not is_found and slip.set not in COUNTED:
                    logging.getLogger(__name__).warning("not found: %s in %s %s", slip.kind, tag, slip.script)
    for number, every in sorted(results.items()):
        yield Figure(
            claim=f"of {len(every)} mistakes of set {number}, written before lint was run on them, found",
            measured=round(100 * sum(every) / len(every), 1),
            unit="%",
            limit=90,
            is_lower_limit=True,
        )
