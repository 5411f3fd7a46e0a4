"""Lists of packages: what each form states, and what is not understood is named."""

import pytest

from harness.compat.inspection.package_lists import read_list
from harness.compat.inspection.stated_packages import SourceKind

COLLECT_ENV = """Collecting environment information...
PyTorch version: 2.7.1+cpu
Is debug build: False
OS: Ubuntu 22.04.5 LTS (aarch64)
Python version: 3.11.13 (main, Jul 26 2025, 07:27:32) [GCC 11.4.0] (64-bit runtime)
CPU:
Architecture:                       aarch64
Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.7.1+cpu
[pip3] torch_npu==2.7.1.dev20250724
[pip3] transformers==4.57.1
[conda] Could not collect
vLLM Version: 0.11.0
vLLM Ascend Version: 0.11.0rc1

NPU:
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| 0     910B3               | OK            | 92.1        41                0    / 0             |
CANN:
package_name=Ascend-cann-toolkit
version=8.3.RC1
"""


def versions(text: str) -> dict[str, str]:
    return {name: one.version for name, one in read_list(text.encode(), "x").packages.items()}


def test_collect_env_states_packages_python_cann_driver_and_chip() -> None:
    found = read_list(COLLECT_ENV.encode(), "x")
    assert found.kind is SourceKind.COLLECT_ENV
    assert {name: one.version for name, one in found.packages.items()} == {
        "numpy": "1.26.4",
        "torch": "2.7.1+cpu",
        "torch-npu": "2.7.1.dev20250724",
        "transformers": "4.57.1",
        "vllm": "0.11.0",
        "vllm-ascend": "0.11.0rc1",
    }
    facts = (found.python, found.arch, found.cann, found.driver, found.soc)
    assert facts == ("3.11.13", "aarch64", "8.3.RC1", "25.2.0", "a2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch==2.7.1+cpu\nTorch_NPU==2.7.1\n", {"torch": "2.7.1+cpu", "torch-npu": "2.7.1"}),
        (
            "Package Version\n------- -------\ntorch   2.7.1\nverl 0.9.1 /src/verl\n",
            {"torch": "2.7.1", "verl": "0.9.1"},
        ),
        ("-e git+https://github.com/verl-project/verl@v0.6.1#egg=verl\n", {"verl": "0.6.1"}),
        ("verl @ git+https://github.com/verl-project/verl.git@v0.6.1\n", {"verl": "0.6.1"}),
        ("vllm @ file:///w/vllm-0.11.0%2Bempty-py3-none-any.whl\n", {"vllm": "0.11.0+empty"}),
        ("# Editable install with no version control (verl==0.7.0.dev0)\n", {"verl": "0.7.0.dev0"}),
        (
            "torch==2.7.1 \\\n    --hash=sha256:00\nnumpy==1.26.4; python_version >= '3'\n",
            {"torch": "2.7.1", "numpy": "1.26.4"},
        ),
        ("torch==2.7.1 ; sys_platform == 'win32'\n", {}),
        ("\ufefftorch==2.7.1\r\n", {"torch": "2.7.1"}),
        ("\x1b[1mtorch==2.7.1\x1b[0m\n", {"torch": "2.7.1"}),
    ],
)
def test_lists(text: str, expected: dict[str, str]) -> None:
    assert versions(text) == expected


def test_a_windows_shell_writes_utf_16() -> None:
    found = read_list("torch==2.7.1\nnumpy==1.26.4\n".encode("utf-16"), "x")
    assert sorted(found.packages) == ["numpy", "torch"]


def test_ranges_and_options_make_a_requirements_file() -> None:
    found = read_list(b"-r other.txt\ntorch>=2.7\nnumpy==1.26.4\n", "x")
    assert found.kind is SourceKind.REQUIREMENTS
    assert found.ranges == ("torch>=2.7",)
    assert "the option -r is not followed" in found.unread[0]


def test_what_is_not_understood_is_named() -> None:
    found = read_list(b"torch==2.7.1\n???\nverl @ git+https://x.y/verl@main\n", "x")
    assert len(found.unread) == 2
    assert "line 2" in found.unread[0]


def test_two_versions_of_one_package_are_named() -> None:
    found = read_list(b"torch==2.7.1\ntorch==2.8.0\n", "x")
    assert found.packages["torch"].version == "2.7.1"
    assert "2.8.0" in found.unread[0]
