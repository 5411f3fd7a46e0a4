"""In-cell program: runs the judges of the checks `update` and `loss` on mutants of the installed verl.

    python -m benchmarks.numerics.mutant_program --mutants mutants.json --out results.jsonl

Each mutant runs in a forked process: the code of the mutated function is exchanged there, and the cases that
execute the mutated line are run and judged until the first that is wrong. verl runs on the CPU and is
imported once.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from benchmarks.numerics.mutation_sites import Mutant, mutated
from benchmarks.numerics.update_path import OTHER_FEATURES, PATH
from harness.numerics.actor.actor_update import start_torch
from harness.numerics.actor.verl_workers import actor_classes
from harness.numerics.loss.candidate import evaluate_one
from harness.numerics.loss.cases.loss_battery import default_battery
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import REQUIRED, LossStatus
from harness.numerics.loss.release_objectives import ReleaseObjective, release_objective
from harness.numerics.loss.trainer_functions import has_module
from harness.numerics.update.replaced import replaced
from harness.numerics.update.update_cases import CASES, UpdateCase
from harness.numerics.update.update_compare import judge_record
from harness.numerics.update.verl_update import run_case

TIMEOUT_S = 90
"""CPU time of a mutant; five times as long by the clock, if it waits."""
UNPADDING = ("index_first_axis", "pad_input", "rearrange", "unpad_input")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What the judges said of a mutant. by: the check, "" if it survived. quantity, place: the first wrong
    quantity and verl's function that it names. error: the exception, if that was how it was found. reached:
    whether a case executes the mutated line."""

    by: str = ""
    case: str = ""
    quantity: str = ""
    place: str = ""
    error: str = ""
    reached: bool = True
    not_applicable: str = ""


@dataclass(frozen=True, kw_only=True)
class JudgedCase:
    """A case of a check. wrong: runs and judges it; None if it is right. lines: the lines of verl that it
    executes, as (file, line)."""

    name: str
    wrong: Callable[[], Kill | None]
    lines: frozenset[tuple[str, int]] = frozenset()


def update_cases(torch: Any, objective: ReleaseObjective) -> Iterator[JudgedCase]:
    """The cases of the check `update`."""

    def wrong(case: UpdateCase, path: str, name: str) -> Kill | None:
        outcome = judge_record(run_case(case, torch, "cpu", path), objective)
        if outcome.error:
            place = re.search(r" in (verl/\S+:\d+ \w+)$", outcome.error)
            return Kill(by="update", case=name, error=outcome.error, place=place.group(1) if place else "")
        for first in outcome.wrong[:1]:
            return Kill(by="update", case=name, quantity=first.quantity, place=first.place)
        return None

    for path in (worker.name for worker in actor_classes()):
        for case in CASES:
            name = f"{case.name} ({path})"
            yield JudgedCase(name=name, wrong=partial(wrong, case, path, name))


def loss_cases(objective: ReleaseObjective) -> Iterator[JudgedCase]:
    """The cases of the check `loss` that this release must pass."""
    from harness.numerics.loss.verl_adapters import VerlCandidate

    candidate = VerlCandidate("cpu")

    def wrong(
        case: LossCase, released: LossCase, expected: tuple[ExpectedResult, ExpectedResult]
    ) -> Kill | None:
        # The check `loss` has no process group.
        with replaced(candidate.torch.distributed, "is_initialized", lambda: False):
            result = evaluate_one(candidate, case)
        verdicts = (judge(case, result, expected[0]), judge(released, result, expected[1]))
        if any(one.status not in (LossStatus.FAIL, LossStatus.UNSUPPORTED) for one in verdicts):
            return None
        error = result.error or result.unsupported
        return Kill(by="loss", case=case.name, quantity=case.operation, error=error, place=result.place)

    for case in default_battery():
        if case.severity == REQUIRED and objective.capabilities.issuperset(case.requires):
            released = objective.released_case(case)[0]
            standard = reference(case)
            expected = (standard, standard if released is case else reference(released))
            yield JudgedCase(name=case.name, wrong=partial(wrong, case, released, expected))


def traced(case: JudgedCase, folder: Path) -> tuple[JudgedCase, Kill | None]:
    """The case with the lines that it executes, and what is wrong without a mutant."""
    files = {str(folder / file): file for file in PATH}
    lines: set[tuple[str, int]] = set()

    def trace(frame: Any, _event: str, _arg: Any) -> Any:
        file = files.get(frame.f_code.co_filename)
        if file is None:
            return None
        lines.add((file, frame.f_lineno))
        return trace

    # Ranks that exchange tensors are threads.
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        found = case.wrong()
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return replace(case, lines=frozenset(lines)), found


def find_code(module: CodeType, name: str) -> CodeType | None:
    """The code object of a function in the code of its file."""
    found: CodeType | None = module
    for part in name.split("."):
        constants = found.co_consts if found else ()
        found = next((one for one in constants if isinstance(one, CodeType) and one.co_name == part), None)
    return found


def live_functions(file: str, code: CodeType) -> list[FunctionType]:
    """The functions of this process that run the code of a function of a file."""
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, FunctionType)
        and one.__code__.co_name == code.co_name
        and one.__code__.co_firstlineno == code.co_firstlineno
        and one.__code__.co_filename.endswith(file)
    ]


def verl_folder() -> Path:
    """Where verl is installed."""
    import verl

    return Path(str(verl.__file__)).parent


def inject(mutant: Mutant) -> str:
    """Exchange the code of the mutated function in this process; returns why that was impossible, or ""."""
    source = (verl_folder() / mutant.file).read_text("utf-8")
    tree = mutated(source, mutant, OTHER_FEATURES)
    code = find_code(compile(tree, mutant.file, "exec"), mutant.function)
    original = find_code(compile(source, mutant.file, "exec"), mutant.function)
    if code is None or original is None:
        return "the function is not at the same place"
    functions = live_functions(mutant.file, original)
    if not functions:
        return "the module is not imported"
    for function in functions:
        if function.__code__.co_freevars != code.co_freevars:
            return "the change removes a variable of an outer function"
        function.__code__ = code.replace(co_filename=function.__code__.co_filename)
    return ""


def in_child(work: Callable[[], Kill]) -> Kill:
    """Run `work` in a forked process; a process that dies or does not end is a kill, too."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.setitimer(signal.ITIMER_PROF, TIMEOUT_S)
        signal.alarm(5 * TIMEOUT_S)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.dup2(2, 1)
        os.write(write, json.dumps(asdict(work())).encode()[:60000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return Kill(by="update", error=f"the process ended with status {status}")
    return Kill(**json.loads(text))


def judged(mutant: Mutant, cases: Sequence[JudgedCase]) -> Kill:
    """The first case that is wrong with the mutant."""
    impossible = inject(mutant)
    if impossible:
        return Kill(not_applicable=impossible)
    return next((found for case in cases if (found := case.wrong())), Kill())


def import_path() -> None:
    """Import verl's modules on the path of an update, which the cases would import later."""
    for file in PATH:
        name = "verl." + file.removesuffix(".py").replace("/", ".")
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)


def use_unpadding_of_npu() -> None:
    """Use the functions that remove padding on NPUs. They are plain torch, so they run here, too."""
    attention: Any = importlib.import_module("verl.utils.attention_utils")
    newer, older = "verl.utils.npu_flash_attn_utils", "verl.utils.npu_utils"
    functions = importlib.import_module(newer if has_module(newer) else older)
    found = tuple(getattr(functions, one) for one in UNPADDING)
    attention._get_attention_functions = lambda: found  # noqa: SLF001 - verl's own name


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.numerics.mutant_program")
    parser.add_argument("--mutants", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="start no mutant after that many seconds"
    )
    parser.add_argument("--lines", type=Path, required=True, help="lines of verl that cases execute, by file")
    arguments = parser.parse_args(argv)
    sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    torch = start_torch("cpu")
    torch.set_num_threads(1)
    # A forked process has no threads of gloo and would wait for them. A sum over one process is no change.
    all_reduce = torch.distributed.all_reduce

    def alone(*args: Any, **kwargs: Any) -> None:
        # Without a process group, verl would raise here.
        if not torch.distributed.is_initialized():
            all_reduce(*args, **kwargs)

    torch.distributed.all_reduce = alone
    import verl

    import_path()
    use_unpadding_of_npu()
    objective = release_objective(verl.__version__)
    measured = [
        traced(one, verl_folder()) for one in (*update_cases(torch, objective), *loss_cases(objective))
    ]
    wrong = [found for _, found in measured if found]
    if any(one.by == "update" for one in wrong):
        print(f"the check update is red without a mutant: {wrong[0]}", file=sys.stderr)
        return 1
    # Releases have a few known defects, which patches of the cells mend.
    print(f"left out, because they are red without a mutant: {sorted(one.case for one in wrong)}")
    cases = [case for case, found in measured if not found]
    executed = set().union(*(case.lines for case in cases))
    by_file = {file: sorted(line for one, line in executed if one == file) for file in PATH}
    arguments.lines.write_text(json.dumps(by_file), "utf-8")
    gc.collect()
    started = time.monotonic()
    with arguments.out.open("w", encoding="utf-8") as out:
        for entry in json.loads(arguments.mutants.read_text("utf-8")):
            if time.monotonic() - started > arguments.seconds:
                break
            mutant = Mutant(**entry)
            places = {(mutant.file, mutant.line), (mutant.file, mutant.statement)}
            concerned = [one for one in cases if not places.isdisjoint(one.lines)]
            kill = in_child(partial(judged, mutant, concerned)) if concerned else Kill(reached=False)
            out.write(json.dumps({"mutant": entry, "kill": asdict(kill)}) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
