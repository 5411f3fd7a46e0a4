"""Import every module of packages of the cell, each in a separate process, and report failures and causes.

    python -m harness.rollout.imports.import_program --out report.json vllm_ascend verl

Runs inside the cell, on its device. For each module, a process that has loaded vLLM, its platform and
vllm-ascend's patches is forked. So a module is imported in the state that it finds in a worker, and no import
affects another one. Of verl, only modules that use the device or vLLM are imported. Exit code 0 whatever
fails.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import importlib.util
import json
import linecache
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.evidence import DeviceFacts, Runtime, runtime_kind
from harness.gc_pause import gc_paused
from harness.rollout.imports.import_measurements import BrokenImport, ImportedPackage, ImportReport
from harness.serialisation import to_json

# Limits for hung imports: one module takes seconds, all modules together take a minute.
SECONDS_PER_MODULE = 120.0
SECONDS_FOR_ALL = 900.0
_MOST_TEXT = 400
# Packages of which every module is imported.
_WHOLE = ("vllm_ascend",)
# A folder with sources of operators for CANN's compiler, which reads them as files.
_NOT_IMPORTED = "_cann_ops_custom"
_TOUCHES_DEVICE = re.compile(r"^\s*(?:import|from)\s+(?:torch_npu|vllm|vllm_ascend)\b", re.MULTILINE)
_NAMES_DEVICE = re.compile(r"npu|ascend")


def modules_of(package: str, root: Path) -> Iterator[str]:
    """The modules of `package` to import.

    They are found as files below `root`: some folders lack __init__.
    """
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if (
            not all(part.isidentifier() for part in parts)
            or parts[-1] == "__main__"
            or _NOT_IMPORTED in parts
        ):
            continue
        if package not in _WHOLE and not _touches_device(path, parts):
            continue
        yield ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _touches_device(path: Path, parts: tuple[str, ...]) -> bool:
    if any(_NAMES_DEVICE.search(part) for part in parts):
        return True
    return bool(_TOUCHES_DEVICE.search(path.read_text("utf-8", "replace")))


def describe(module: str, error: BaseException, root: Path) -> BrokenImport:
    """The cause of an error that the import of `module` raised."""
    chain = [error]
    while (inner := chain[-1].__cause__) is not None and inner not in chain:
        chain.append(inner)
    cause = chain[-1]
    frame = next((found for link in reversed(chain) if (found := _own_frame(link, root))), None)
    kind, missing = _kind(cause)
    return BrokenImport(
        module=module,
        kind=kind,
        type=type(cause).__name__,
        message=_first_line(cause),
        file=str(Path(frame.filename).relative_to(root.parent)) if frame else "",
        line=frame.lineno or 0 if frame else 0,
        code=linecache.getline(frame.filename, frame.lineno or 0).strip()[:_MOST_TEXT] if frame else "",
        missing=missing,
        chain=tuple(f"{type(link).__name__}: {_first_line(link)}" for link in chain),
    )


def _kind(error: BaseException) -> tuple[str, str]:
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return ("absent" if _is_absent(top) else "api"), error.name
    if isinstance(error, ImportError):
        # CPython sets `name_from` since 3.12 only, but the message is the same in all versions.
        named = re.match(
            r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'", str(error)
        )
        return "api", f"{named[2]}.{named[1]}" if named else str(error.name or "")
    if isinstance(error, OSError) and (library := re.match(r"(lib\S+\.so\S*): cannot open", str(error))):
        return "library", library[1]
    if isinstance(error, AttributeError):
        if placeholder := _placeholder(error.obj):
            return "absent", placeholder
        named = re.match(r"module '([^']+)' has no attribute '([^']+)'", str(error))
        return ("api", f"{named[1]}.{named[2]}") if named else ("error", "")
    return "error", ""


def _placeholder(module: object) -> str:
    """The name of a placeholder that another package, for example vLLM, put in place of an absent module."""
    kind = type(module)
    if not isinstance(module, ModuleType) or kind is ModuleType:
        return ""
    return module.__name__ if kind.__module__.partition(".")[0] != module.__name__.partition(".")[0] else ""


def _is_absent(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is None
    except (ImportError, ValueError):
        return False


def _own_frame(error: BaseException, root: Path) -> traceback.FrameSummary | None:
    """The innermost frame in files below `root`, except that of a replaced `__import__`."""
    hook = getattr(builtins.__import__, "__code__", None)
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code is not hook and Path(frame.f_code.co_filename).is_relative_to(root):
            found = traceback.FrameSummary(
                frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False
            )
    return found


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:_MOST_TEXT] if lines else ""


def in_child(
    work: Callable[[], BrokenImport | None], module: str, seconds: float = SECONDS_PER_MODULE
) -> BrokenImport | None:
    """Run `work` in a fork of this process, return its result. A crash or hang counts as a broken import."""
    found = _forked(lambda: to_json(work()), seconds)
    if isinstance(found, ImportFailure):
        return BrokenImport(module=module, kind=found.kind, type=found.type, message=found.message)
    return BrokenImport(**{**found, "chain": tuple(found["chain"])}) if found else None


@dataclass(frozen=True, kw_only=True)
class ImportFailure:
    """How a fork ended without a result."""

    kind: str
    type: str
    message: str


def _forked(work: Callable[[], Any], seconds: float) -> Any:
    """Run `work` in a fork of this process; return its result as JSON, or an `ImportFailure` if it failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _write_result(work, writing)
    os.close(writing)
    try:
        text = _read(reading, time.monotonic() + seconds)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return ImportFailure(kind="hang", type="hang", message=f"no end after {seconds:.0f} s")
    finally:
        os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return ImportFailure(kind="crash", type=name, message=f"the process was ended by {name}")
    if not text:
        return ImportFailure(kind="crash", type="exit", message="the process ended without a result")
    return json.loads(text)


def _write_result(work: Callable[[], Any], pipe: int) -> None:
    """Write the result and end the process, without continuing the parent's work or running exit handlers."""
    try:
        with os.fdopen(pipe, "w", encoding="utf-8") as stream:
            json.dump(work(), stream)
    finally:
        os._exit(0)


def _read(pipe: int, deadline: float) -> str:
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


def attempt(module: str, root: Path, action: Callable[[], object]) -> BrokenImport | None:
    """Call `action`. If it raises an error, return the cause as a broken import of `module`."""
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - an import may raise anything
        return describe(module, error, root)
    return None


def _preload(package: str, modules: list[str]) -> None:
    """Import what `modules` need of other packages here, so that each fork only imports its own module."""
    names = _forked(partial(_loaded_with, package, modules), SECONDS_FOR_ALL)
    for name in () if isinstance(names, ImportFailure) else names:
        _imports(name)


def _loaded_with(package: str, modules: list[str]) -> list[str]:
    before = set(sys.modules)
    for module in modules:
        _imports(module)
    return [name for name in sys.modules if name not in before and name.partition(".")[0] != package]


def mark_order_dependent(found: list[BrokenImport], modules: list[str], seconds: float) -> list[BrokenImport]:
    """Set the kind `order` for modules of `found` that can be imported after the other modules."""
    suspects = [one.module for one in found if one.kind in ("api", "error") and one.module in modules]
    if not suspects:
        return found
    broken = {one.module for one in found}
    others = [module for module in modules if module not in broken]
    names = _forked(partial(_importable_after, others, suspects), seconds)
    importable = set() if isinstance(names, ImportFailure) else set(names)
    # After a failed import of a package, its modules stay in sys.modules and can be imported, although what
    # they need is still missing.
    lacking = {one.missing for one in found if one.module not in importable and one.missing}
    return [
        replace(one, kind="order") if one.module in importable and one.missing not in lacking else one
        for one in found
    ]


def _importable_after(others: list[str], suspects: list[str]) -> list[str]:
    for module in others:
        _imports(module)
    return [module for module in suspects if _imports(module)]


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except BaseException:  # noqa: BLE001 - an import may raise anything
        return False
    return True


def _prepare(root: Path) -> list[BrokenImport]:
    """Load vLLM's platform and vllm-ascend's patches into this process. Returns the steps that failed."""
    found = []
    for name, step in (
        ("vllm_ascend: platform", _activate_platform),
        ("vllm_ascend: compiled extension", _load_extension),
        ("vllm_ascend: patches of every process", partial(_patch, is_global_patch=True)),
        ("vllm_ascend: patches of a worker", partial(_patch, is_global_patch=False)),
    ):
        # Each step runs in a fork first, because a partly applied patch would affect all later imports.
        problem = in_child(partial(attempt, name, root, step), name)
        if problem is None:
            problem = attempt(name, root, step)
        if problem is not None:
            found.append(problem)
    return found


def _activate_platform() -> None:
    platforms = importlib.import_module("vllm.platforms")
    device = platforms.current_platform.device_type
    if device != "npu":
        raise RuntimeError(f"vLLM runs on {device!r}: the platform plugin of vllm-ascend is not active")


def _load_extension() -> None:
    """Register the operators of the compiled extension; vllm-ascend also works without an extension."""
    enable = getattr(importlib.import_module("vllm_ascend.utils"), "enable_custom_op", None)
    if enable is not None:
        enable()


def _patch(*, is_global_patch: bool) -> None:
    importlib.import_module("vllm_ascend.utils").adapt_patch(is_global_patch=is_global_patch)


@gc_paused()
def examine(packages: list[str]) -> ImportReport:
    """Import the modules of the `packages` that are installed, and report on them.

    A garbage collection writes to objects, and forks then copy their memory: it is paused.
    """
    started = time.monotonic()
    found: list[BrokenImport] = []
    facts: dict[str, ImportedPackage] = {}
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        root = Path(next(iter(spec.submodule_search_locations)))
        if package == "vllm_ascend":
            found += _prepare(root)
        modules = list(modules_of(package, root))
        _preload(package, modules)
        broken: list[BrokenImport] = []
        for module in modules:
            if module in sys.modules:
                # Loaded with the patches, so its import has succeeded already.
                continue
            action = partial(importlib.import_module, module)
            problem = in_child(partial(attempt, module, root, action), module)
            if problem is not None:
                broken.append(problem)
        found += mark_order_dependent(broken, modules, SECONDS_FOR_ALL)
        facts[package] = ImportedPackage(
            version=metadata.version(package.replace("_", "-")),
            modules=len(modules),
            requires=tuple(sorted(_required(package))),
        )
    return ImportReport(
        schema={"name": "npu-matrix.imports", "version": 1},
        packages=facts,
        breaks=tuple(found),
        device=_device(),
        seconds=round(time.monotonic() - started, 3),
    )


def _device() -> DeviceFacts:
    runtime = runtime_kind()
    return DeviceFacts(kind="npu", runtime=runtime, simulated=runtime is Runtime.SIMULATED)


def _required(package: str) -> set[str]:
    """The names of the distributions that the package requires without an extra."""
    lines = metadata.requires(package.replace("_", "-")) or []
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines if "extra ==" not in line)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def main(arguments: list[str] | None = None) -> int:
    """Examine the packages, and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("packages", nargs="+")
    options = parser.parse_args(arguments)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    report = examine(options.packages)
    options.out.write_text(json.dumps(to_json(report), indent=1), encoding="utf-8")
    modules = sum(facts.modules for facts in report.packages.values())
    print(f"{modules} modules, {len(report.breaks)} breaks, {report.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
