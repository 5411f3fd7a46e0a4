"""Functions that nothing in their package calls."""

from pathlib import Path

import pytest
from source_zip import write_zip

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.uncalled_functions import uncalled_functions

HELPER = '''import atexit
import torch_npu


def show(*values):
    """For debugging: `show(x)`."""
    torch_npu.npu._launch(values)
'''


def lines(tmp_path: Path, utils: str, other: str = "", started: str = "") -> tuple[range, ...]:
    file = write_zip(
        tmp_path / "package.zip",
        {"package/__init__.py": "", "package/utils.py": utils, "package/other.py": other},
    )
    return uncalled_functions(ApiSurface(file), ["package/utils.py"], started).get("package/utils.py", ())


def test_a_helper_that_only_its_own_text_names(tmp_path: Path) -> None:
    assert lines(tmp_path, HELPER) == (range(5, 8),)


def test_a_function_that_runs_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    assert lines(tmp_path, f"{HELPER}\n\natexit.register(show)\n") == (range(5, 8),)


@pytest.mark.parametrize(
    ("utils", "other", "started"),
    [
        (f"{HELPER}\n\nshow(1)\n", "", ""),
        (f"{HELPER}\n\natexit.register(show)\nshow(1)\n", "", ""),
        (HELPER, "from package.utils import show\n", ""),
        (HELPER, "PLUGIN = 'package.utils:show'\n", ""),
        (HELPER, "", "[vllm.plugins]\nours = package.utils:show\n"),
        (HELPER.replace("def show", "@register\ndef show"), "", ""),
        ("class A:\n    def show(self):\n        torch_npu.npu._launch(self)\n", "", ""),
    ],
)
def test_what_may_be_called(tmp_path: Path, utils: str, other: str, started: str) -> None:
    assert lines(tmp_path, utils, other, started) == ()
