"""The code a check names as its own is the code it runs: what it imports and does not name changes no key."""

import ast
from pathlib import Path

import pytest

from harness.outcome import Tier
from harness.plan.keys.code import PACKAGE_ROOT, SIMULATOR, code_digests, source_files
from harness.plan.tasks.check_registry import all_checks

#: What every check is written in terms of, and what the facet `device` names by its digest.
COMMON = {f"harness.{name}" for name in ("check", "digest", "errors", "outcome")}
#: Imports that reach no answer of the check: (check or "*", importing file, imported module) -> why.
NO_PART = {
    (
        "*",
        "convergence/trainer/gap.py",
        "harness.numerics.arithmetic.precision_contract",
    ): "run by the trainers with vLLM alone",
    (
        "*",
        "convergence/trainer/gap.py",
        "harness.numerics.arithmetic.stochastic_arithmetic",
    ): "run by the trainers with vLLM alone",
    ("*", "rollout/generation_checks.py", "harness.numerics.checks"): "names of facets, which the key has",
    ("*", "rollout/import_checks.py", "harness.numerics.checks"): "names of facets, which the key has",
    (
        "vllm-imports",
        "rollout/generation_checks.py",
        "harness.rollout.generation.generation_judge",
    ): "it takes needs_engine",
    (
        "grpo",
        "convergence/trainer/check.py",
        "harness.cell_program.unsimulated_operators",
    ): "its loop is our own",
    (
        "gspo",
        "convergence/trainer/check.py",
        "harness.cell_program.unsimulated_operators",
    ): "its loop is our own",
    ("gpt-oss", "convergence/train.py", "harness.convergence.telemetry.machine_load"): "it takes versions",
    ("gpt-oss", "convergence/train.py", "harness.convergence.smoke.smoke_recipe"): "it takes versions",
}
IN_CELL = [check for check in all_checks() if check.device and check.tier is not Tier.BUILD]


def module_file(dotted: str) -> Path | None:
    path = PACKAGE_ROOT.parent.joinpath(*dotted.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def imported(file: Path) -> set[str]:
    """The modules of this project that a module imports when it is imported itself."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            within = {f"{node.module}.{name.name}" for name in node.names}
            inner = {name for name in within if module_file(name)}
            found |= inner or {node.module}
    return {name for name in found if name.startswith("harness.") and module_file(name)}


@pytest.mark.parametrize("check", IN_CELL, ids=[check.name for check in IN_CELL])
def test_a_check_in_a_cell_names_all_code_that_it_imports(check):
    own = {file for dotted in check.sources for file in source_files(dotted)}
    missing = []
    for file in sorted(own):
        if file.suffix != ".py":
            continue
        place = file.relative_to(PACKAGE_ROOT).as_posix()
        for name in sorted(imported(file) - COMMON):
            known = {(check.name, place, name), ("*", place, name)} & NO_PART.keys()
            if module_file(name) not in own and not name.startswith(SIMULATOR) and not known:
                missing.append(f"{place} imports {name}")
    assert not missing, "its key does not change with this code: name it in sources, or say why not here"


def test_the_code_of_a_check_is_part_of_its_digest_byte_by_byte(tmp_path):
    root = tmp_path / "harness"
    check = next(check for check in all_checks() if check.name == "patches")
    names = [file for dotted in check.sources for file in source_files(dotted)]
    for file in names:
        copy = root / file.relative_to(PACKAGE_ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    before = code_digests([check], root)
    assert before == code_digests([check])
    for file in names:
        copy = root / file.relative_to(PACKAGE_ROOT)
        whole = copy.read_bytes()
        copy.write_bytes(whole + b" ")
        assert code_digests([check], root) != before, f"{file.name} is no part of it"
        copy.write_bytes(whole)
    (root / "patchstack" / "__pycache__").mkdir(exist_ok=True)
    (root / "patchstack" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert code_digests([check], root) == before
