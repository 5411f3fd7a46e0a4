"""Importing every module in a separate process: which imports fail, why and where."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from harness.rollout.imports.import_measurements import BrokenImport
from harness.rollout.imports.import_program import attempt, in_child, mark_order_dependent, modules_of

ENGINE = {
    "__init__.py": "",
    "standin.py": "import sys, types\nclass Absent(types.ModuleType): ...\nsys.modules['fast_x'] = Absent('fast_x')\n",
    "new.py": "class Kept: ...\n",
}
PLUGIN = {
    "__init__.py": "",
    "good.py": "VALUE = 1\n",
    "name.py": "from engine_x.new import Kept\nfrom engine_x.new import Gone\n",
    "module.py": "import engine_x.old.deep\n",
    "attribute.py": "import engine_x.new\nX = engine_x.new.Vanished\n",
    "optional.py": "import json\nimport never_installed.part\n",
    "indirect.py": "from plugin_x import name\n",
    "library.py": "import ctypes\nctypes.CDLL('libnever-there.so.1')\n",
    "raises.py": "def check():\n    raise ValueError('two\\nlines')\ncheck()\n",
    "wrapped.py": "try:\n    import never_installed\nexcept ImportError as e:\n    raise RuntimeError('hidden') from e\n",
    "standin.py": "import engine_x.standin\nimport fast_x\nfast_x.exp\n",
    "leaves.py": "raise SystemExit(3)\n",
    "dies.py": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "quits.py": "import os\nos._exit(0)\n",
    "hangs.py": "import time\ntime.sleep(3600)\n",
    "spoils.py": "import engine_x.new\nengine_x.new.Gone = 1\n",
    "not-a-name/x.py": "",
    "folder/inner.py": "",
    "_cann_ops_custom/kernel.py": "",
    "late.py": "import sys\nassert 'plugin_x.good' in sys.modules\n",
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for package, files in (("engine_x", ENGINE), ("plugin_x", PLUGIN)):
        for name, text in files.items():
            path = tmp_path / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path / "plugin_x"


def outcome(plugin: Path, name: str, seconds: float = 90.0) -> BrokenImport | None:
    module = f"plugin_x.{name}"
    return in_child(partial(attempt, module, plugin, partial(import_module, module)), module, seconds)


def test_modules_come_from_files_also_without_an_init(plugin: Path) -> None:
    found = list(modules_of("vllm_ascend", plugin))
    assert "vllm_ascend.folder.inner" in found
    assert "vllm_ascend" in found
    assert not [name for name in found if "not-a-name" in name or "kernel" in name]


def test_of_another_package_only_what_touches_the_device_counts(tmp_path: Path) -> None:
    files: Mapping[str, str] = {
        "a.py": "import torch\n",
        "b.py": "    from vllm.v1 import x\n",
        "c.py": "# import torch_npu\n",
        "npu_patch.py": "",
        "d.py": "import torch_npu\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert list(modules_of("verl", tmp_path)) == ["verl.b", "verl.d", "verl.npu_patch"]


def test_a_good_module_is_no_break(plugin: Path) -> None:
    assert outcome(plugin, "good") is None
    assert "plugin_x.good" not in sys.modules, "it was imported in this process"


@pytest.mark.parametrize(
    ("name", "kind", "missing", "place"),
    [
        ("name", "api", "engine_x.new.Gone", ("plugin_x/name.py", 2)),
        ("module", "api", "engine_x.old", ("plugin_x/module.py", 1)),
        ("attribute", "api", "engine_x.new.Vanished", ("plugin_x/attribute.py", 2)),
        ("optional", "absent", "never_installed", ("plugin_x/optional.py", 2)),
        ("indirect", "api", "engine_x.new.Gone", ("plugin_x/name.py", 2)),
        ("library", "library", "libnever-there.so.1", ("plugin_x/library.py", 2)),
        ("raises", "error", "", ("plugin_x/raises.py", 2)),
        ("standin", "absent", "fast_x", ("plugin_x/standin.py", 3)),
        ("leaves", "error", "", ("plugin_x/leaves.py", 1)),
    ],
)
def test_a_break_names_its_cause_and_place(
    plugin: Path, name: str, kind: str, missing: str, place: tuple[str, int]
) -> None:
    found = outcome(plugin, name)
    assert found is not None
    assert (found.kind, found.missing, (found.file, found.line)) == (kind, missing, place)
    assert found.code == (plugin.parent / found.file).read_text().splitlines()[found.line - 1].strip()


def test_the_cause_behind_an_error_counts(plugin: Path) -> None:
    found = outcome(plugin, "wrapped")
    assert found is not None
    assert (found.kind, found.missing, found.type) == ("absent", "never_installed", "ModuleNotFoundError")
    assert found.chain[0] == "RuntimeError: hidden"


def test_a_replaced_import_function_is_not_the_place(plugin: Path) -> None:
    """vllm-ascend replaces `__import__`, so every traceback ends in its file."""
    hook = plugin / "hook.py"
    hook.write_text(
        "import builtins\noriginal = builtins.__import__\n"
        "def patched(*a, **k):\n    return original(*a, **k)\nbuiltins.__import__ = patched\n"
    )

    def work() -> BrokenImport | None:
        import_module("plugin_x.hook")
        return attempt("plugin_x.name", plugin, partial(import_module, "plugin_x.name"))

    found = in_child(work, "plugin_x.name")
    assert found is not None
    assert (found.file, found.line) == ("plugin_x/name.py", 2)


def test_a_module_cannot_spoil_the_next(plugin: Path) -> None:
    assert outcome(plugin, "spoils") is None
    assert outcome(plugin, "name") is not None


def test_what_only_needs_others_before_it_is_told_apart(plugin: Path) -> None:
    names = ["good", "late", "name"]
    found = [one for name in names if (one := outcome(plugin, name))]
    assert [one.kind for one in found] == ["error", "api"]
    apart = mark_order_dependent(found, [f"plugin_x.{name}" for name in names], 90.0)
    assert [(one.module, one.kind) for one in apart] == [("plugin_x.late", "order"), ("plugin_x.name", "api")]
    assert "plugin_x.good" not in sys.modules


def test_a_module_below_a_package_that_fails_is_no_matter_of_order(plugin: Path) -> None:
    (plugin / "below").mkdir()
    (plugin / "below/__init__.py").write_text(
        "from plugin_x.below import part\nfrom engine_x.new import Gone\n"
    )
    (plugin / "below/part.py").write_text("")
    names = ["below", "below.part", "good"]
    found = [one for name in names if (one := outcome(plugin, name))]
    apart = mark_order_dependent(found, [f"plugin_x.{name}" for name in names], 90.0)
    assert [one.kind for one in apart] == ["api", "api"]


def test_a_crash_while_telling_apart_changes_nothing(plugin: Path) -> None:
    found = [one for one in (outcome(plugin, "late"),) if one]
    assert mark_order_dependent(found, ["plugin_x.dies", "plugin_x.late"], 90.0) == found


def children() -> set[str]:
    """Process ids; the worker that runs tests may have some that are no business of the test."""
    return set(" ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split())


def test_a_crash_and_a_hang_are_breaks_and_leave_no_process(plugin: Path) -> None:
    before = children()
    died, left = outcome(plugin, "dies"), outcome(plugin, "quits")
    hung = outcome(plugin, "hangs", seconds=0.5)
    found = [(one.kind, one.type) for one in (died, left, hung) if one]
    assert found == [("crash", signal.Signals.SIGKILL.name), ("crash", "exit"), ("hang", "hang")]
    assert children() <= before


def test_the_program_runs_where_nothing_of_the_stack_is_installed(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "harness.rollout.imports.import_program",
            "--out",
            str(out),
            "no_such_package_x",
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "0 modules, 0 breaks" in done.stdout
