"""Mutation score of the checks `loss` and `update`: verl's functions on the path of an update are changed
mechanically, and the checks are run on each mutant.

    python -m benchmarks.numerics.mutation 0.9.1=/path/of/a/cell/bin/python [--sample 200] [--half looked-at]

Each argument is a verl release and the Python of an environment that has it. A mutant is killed if a check is
red: a quantity is wrong, or verl raised an exception, which the checks report with verl's line. The second
kind is also counted apart, because a first run finds it, too. Equivalent mutants were judged by reading, and
are listed in equivalent_mutants.yaml with the reason. Mutants in lines that neither a case executes nor
recorded trainings did (`trainer_lines.json`, made by update_tracer) are off the path of an update;
`--show-off-path` lists these lines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from benchmarks.figures import ROOT
from benchmarks.numerics.mutation_sites import Mutant, mutants
from benchmarks.numerics.update_path import ENGINE, ENGINE_WORKER, OTHER_FEATURES, PATH

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.yaml")
TRAINED = Path(__file__).with_name("trainer_lines.json")
HALVES = ("looked-at", "counted", "both", "more")
GOAL = 0.95


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant: killed, raised, survived, equivalent, off-path or not-applicable. why: the
    reason, or what found it."""

    mutant: Mutant
    status: str
    why: str
    located: bool | None = None


def all_mutants(folder: Path, *, more: bool, draw: int = 0) -> list[Mutant]:
    """The mutants of one release whose `verl` folder this is, in the order in which samples are drawn.
    more: those of the operators that were added later. draw: the number of the order."""
    trains_with_engine = (folder / ENGINE_WORKER).is_file()
    found = [
        one
        for file, functions in PATH.items()
        if (folder / file).is_file() and (trains_with_engine or not file.startswith(ENGINE))
        for one in mutants((folder / file).read_text("utf-8"), file, functions, OTHER_FEATURES, more=more)
    ]
    return sorted(found, key=lambda one: one.drawn(draw))


def equivalents() -> list[Mapping[str, str]]:
    """The list of mutants that change nothing: function, operator, before, after, code (a regular expression
    in the statement), of which parts may be left out, and the reason. killed: which mutant with the same
    source is wrong in a case."""
    return list(yaml.safe_load(EQUIVALENT.read_text("utf-8")))


def first_entry(mutant: Mutant, entries: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The first entry of the list that is about a mutant, an empty one if none is."""

    def is_about(entry: Mapping[str, str]) -> bool:
        parts = {name: getattr(mutant, name) for name in ("function", "operator", "before", "after")}
        same = all(text == entry[name] for name, text in parts.items() if name in entry)
        return same and bool(re.search(entry.get("code", ""), mutant.code))

    return next(filter(is_about, entries), {})


def why_equivalent(mutant: Mutant, entries: Sequence[Mapping[str, str]]) -> str:
    """The reason why a mutant changes nothing, "" if none is known."""
    return first_entry(mutant, entries).get("reason", "")


def is_known(mutant: Mutant, entries: Sequence[Mapping[str, str]]) -> bool:
    """Whether a mutant need not be run. Another one with the same source may not be equivalent: if the entry
    says so, both are run."""
    entry = first_entry(mutant, entries)
    return bool(entry) and "killed" not in entry


def of_entries(chosen: Sequence[Mutant], entries: Sequence[Mapping[str, str]], number: int) -> list[Mutant]:
    """So many mutants of each entry, of those about which no entry before it is."""
    firsts = [first_entry(one, entries) for one in chosen]
    found = [
        [one for one, first in zip(chosen, firsts, strict=True) if first is entry][:number]
        for entry in entries
    ]
    return [one for some in found for one in some]


def obsolete(verdicts: Sequence[Verdict], entries: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Entries about mutants of which none survived: a check is red with each of them."""
    firsts = [(first_entry(one.mutant, entries), one.status == "equivalent") for one in verdicts]
    survived = [[equivalent for first, equivalent in firsts if first is entry] for entry in entries]
    return [entry for entry, found in zip(entries, survived, strict=True) if found and not any(found)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run of the checks in an environment found. kills: of each mutant. executed: the lines of verl
    that a case executes, by file."""

    kills: Sequence[tuple[Mutant, Mapping[str, object]]]
    executed: Mapping[str, frozenset[int]]


def run_release(python: str, chosen: Sequence[Mutant], seconds: float) -> Run:
    """Run the checks on mutants with the interpreter of an environment."""
    with tempfile.TemporaryDirectory() as folder:
        listed, results, lines = (
            Path(folder, name) for name in ("mutants.json", "results.jsonl", "lines.json")
        )
        listed.write_text(json.dumps([asdict(one) for one in chosen]), "utf-8")
        # verl runs on the CPU, so torch must not load the extension of a device.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
        command = [python, "-m", "benchmarks.numerics.mutant_program"]
        command += [f"--mutants={listed}", f"--out={results}", f"--lines={lines}", f"--seconds={seconds}"]
        ended = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise SystemExit(f"the program in the cell failed: {ended.stderr[-2000:]}")
        print("\n".join(ended.stdout.splitlines()[-2:]))
        entries = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
        return Run(
            kills=[(Mutant(**entry["mutant"]), entry["kill"]) for entry in entries],
            executed=_by_file(json.loads(lines.read_text("utf-8"))),
        )


def _by_file(lines: Mapping[str, Sequence[int]]) -> Mapping[str, frozenset[int]]:
    return {file: frozenset(of_file) for file, of_file in lines.items()}


def unreached(
    folder: Path, executed: Mapping[str, frozenset[int]], trained: Mapping[str, frozenset[int]]
) -> list[str]:
    """Statements of the path of an update, without branches of other features, that no case executes, as
    the mutants in them survive. Those that a recorded training executes come first."""
    places = {
        (one.file, one.statement): one
        for more in (False, True)
        for one in all_mutants(folder, more=more)
        if not {one.line, one.statement} & executed.get(one.file, frozenset())
    }
    by_training = {place: place[1] in trained.get(place[0], ()) for place in places}
    listed = sorted(places.items(), key=lambda item: (not by_training[item[0]], item[0]))
    return [
        f"{'trainings' if by_training[place] else 'nobody'}: {place[0]}:{place[1]} {one.function} {one.code}"
        for place, one in listed
    ]


def verdict(
    mutant: Mutant,
    kill: Mapping[str, object],
    entries: Sequence[Mapping[str, str]],
    trained: Mapping[str, frozenset[int]],
) -> Verdict:
    """What a result means; an empty one is of a mutant that was not run, because it is known to change
    nothing."""
    if not kill:
        return Verdict(mutant=mutant, status="equivalent", why=why_equivalent(mutant, entries))
    if kill["not_applicable"]:
        return Verdict(mutant=mutant, status="not-applicable", why=str(kill["not_applicable"]))
    if kill["by"]:
        function = mutant.function.rpartition(".")[2]
        located = str(kill["place"]).endswith(f" {function}")
        found = f"{kill['by']}: {kill['error'] or kill['quantity']} in {kill['case']} ({kill['place']})"
        status = "raised" if kill["error"] else "killed"
        return Verdict(mutant=mutant, status=status, why=found, located=located)
    reason = why_equivalent(mutant, entries)
    if reason:
        return Verdict(mutant=mutant, status="equivalent", why=reason)
    if not kill["reached"] and not {mutant.line, mutant.statement} & trained.get(mutant.file, frozenset()):
        return Verdict(
            mutant=mutant, status="off-path", why="neither a case nor a training executes the line"
        )
    return Verdict(
        mutant=mutant,
        status="survived",
        why="no case is wrong" if kill["reached"] else "no case executes the line",
    )


def score(verdicts: Sequence[Verdict]) -> float:
    """Mutants that turn a check red among those on the path that are not equivalent."""
    counts = Counter(one.status for one in verdicts)
    red = counts["killed"] + counts["raised"]
    of = red + counts["survived"]
    return red / of if of else 0.0


def trained_lines(release: str) -> Mapping[str, frozenset[int]]:
    """The lines of verl that recorded trainings with this release executed, by file."""
    return _by_file(json.loads(TRAINED.read_text("utf-8")).get(release, {}))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.numerics.mutation", description=__doc__)
    parser.add_argument("environments", nargs="+", metavar="RELEASE=PYTHON")
    parser.add_argument("--sample", type=int, default=200, help="mutants of each release; 0 for all")
    parser.add_argument("--half", choices=HALVES, default="both")
    parser.add_argument("--function", default="", help="only mutants of functions whose name contains this")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument(
        "--skip", type=int, default=0, help="leave out so many mutants of the order of the draw"
    )
    parser.add_argument(
        "--draw", type=int, default=0, help="the number of the order in which samples are drawn"
    )
    parser.add_argument(
        "--entries",
        type=int,
        default=0,
        metavar="N",
        help="only the first N mutants of each entry of equivalent_mutants.yaml; lists entries of which none "
        "survives",
    )
    parser.add_argument(
        "--without-known",
        action="store_true",
        help="do not run mutants of which the list says that they change nothing; they take longest",
    )
    parser.add_argument("--show-off-path", action="store_true", help="also list lines off the path")
    parser.add_argument(
        "--unreached", action="store_true", help="run no mutant; list the lines that no case executes"
    )
    parser.add_argument("--json", type=Path, help="also write all verdicts to this file")
    arguments = parser.parse_args(argv)
    entries, kept, written = equivalents(), True, {}
    verdicts: list[Verdict] = []
    for environment in arguments.environments:
        release, _, python = environment.partition("=")
        folder, trained = verl_folder(python), trained_lines(release)
        if arguments.unreached:
            lines = unreached(folder, run_release(python, (), 0.0).executed, trained)
            print("\n".join((f"verl {release}: {len(lines)} lines that no case executes", *lines)))
            continue
        chosen = _chosen(folder, arguments, entries)
        total = len(chosen)
        chosen = chosen[arguments.skip :][: arguments.sample or None]
        known = [one for one in chosen if arguments.without_known and is_known(one, entries)]
        run = run_release(python, [one for one in chosen if one not in known], arguments.seconds)
        unrun: list[tuple[Mutant, Mapping[str, object]]] = [(one, {}) for one in known]
        kills = [*run.kills, *unrun]
        found = [verdict(*one, entries, trained) for one in kills]
        _print(release, total, found, show=arguments.half != "counted", off_path=arguments.show_off_path)
        written[release] = [asdict(one) for one in found]
        verdicts += found
        kept = kept and score(found) >= GOAL
    for entry in obsolete(verdicts, entries) if arguments.entries else ():
        print(f"every mutant of this entry that was run is red: {dict(entry)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(written, indent=1), "utf-8")
    return 0 if kept else 1


def _chosen(
    folder: Path, arguments: argparse.Namespace, entries: Sequence[Mapping[str, str]]
) -> list[Mutant]:
    """The mutants that the command line selects, before the sample."""
    # An entry of the list was judged by reading, so its mutants may be looked at.
    half = "both" if arguments.entries else arguments.half
    found = [
        one
        for more in ((False, True) if arguments.entries else (half == "more",))
        for one in all_mutants(folder, more=more, draw=arguments.draw)
        if arguments.function in one.function
    ]
    if half in ("looked-at", "counted"):
        found = [one for one in found if one.is_looked_at == (half == "looked-at")]
    return of_entries(found, entries, arguments.entries) if arguments.entries else found


def verl_folder(python: str) -> Path:
    """Where the package `verl` of an environment is."""
    code = "import importlib.util as u; print(u.find_spec('verl').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def _print(release: str, total: int, found: Sequence[Verdict], *, show: bool, off_path: bool) -> None:
    counts = Counter(one.status for one in found)
    wrong = [bool(one.located) for one in found if one.status == "killed"]
    raised = [bool(one.located) for one in found if one.status == "raised"]
    print(f"verl {release}: {len(found)} of {total} mutants; {dict(counts)}")
    print(f"  score {score(found):.1%} of those on the path that are not equivalent")
    print(
        f"  the named function is the mutated one in {sum(wrong)} of {len(wrong)} wrong quantities "
        f"and {sum(raised)} of {len(raised)} exceptions"
    )
    shown = {"survived"} if show else set()
    for one in found:
        if one.status in (shown | {"off-path"} if off_path else shown):
            what = one.mutant.key.partition(" ")[2]
            print(f"  {one.status}: {one.mutant.file}:{one.mutant.line} {what} ({one.why})")


if __name__ == "__main__":
    sys.exit(main())
