"""Files of an upstream's tests, each in a process of its own: what crashes, hangs and uses too much memory."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.package import IMPORT_ROOT
from harness.serialisation import to_json
from harness.upstream_tests.in_cell.file_results import FileLimits, FilesToRun, FileToRun
from harness.upstream_tests.in_cell.process_tree import memory_left

MIXED = """
import os, signal, time, unittest
import pytest
from sibling import VALUE


class TestMixed(unittest.TestCase):
    def test_a_passes(self):
        assert VALUE == 3

    def test_b_fails(self):
        self.assertEqual(1, 2)

    def test_c_crashes(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def test_d_after_the_crash(self):
        pass

    def test_e_exits(self):
        os._exit(0)

    @unittest.skip("not here")
    def test_f_skipped(self):
        pass

    @unittest.expectedFailure
    def test_g_expected(self):
        assert False

    def test_h_left_out(self):
        assert False


@pytest.mark.parametrize("size", [1, 2])
def test_parametrised(size):
    assert size == 1
"""
HANGS = """
import subprocess, sys, time


def test_first():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_hangs():
    time.sleep(600)


def test_last():
    pass
"""
GREEDY = """
kept = []


def test_memory():
    while True:
        kept.append(bytearray(8 << 20))
"""

LARGE = """
import time


def test_before():
    pass


def test_large():
    kept = bytearray(700 << 20)
    time.sleep(3)


def test_after():
    pass
"""

SPAWNS = """
import atexit, multiprocessing, os, random, signal, sys
import pytest

context = multiprocessing.get_context("spawn")


def rank(queue):
    atexit.register(os.write, 1, b"the last words of a rank\\n")
    queue.put((os.environ.get("MASTER_PORT"), os.getcwd(), random.random(), "colorsys" in sys.modules))


def ends(how):
    if how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    os._exit(3)


def ranks():
    queue = context.Queue()
    started = [context.Process(target=rank, args=(queue,)) for _ in range(2)]
    for one in started:
        one.start()
    found = [queue.get() for _ in started]
    for one in started:
        one.join()
        assert one.exitcode == 0
    return found


def test_as_new(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29511")
    monkeypatch.chdir(tmp_path)
    (port, folder, first, warm), (_, _, second, _) = ranks()
    assert (port, folder, warm) == ("29511", str(tmp_path), True)
    assert first != second


def test_other_environment(monkeypatch):
    monkeypatch.setenv("TORCH_READS_THIS", "1")
    assert not ranks()[0][3]


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("signal", -signal.SIGSEGV)])
def test_ends(how, code):
    process = context.Process(target=ends, args=(how,))
    process.start()
    process.join(20)
    assert process.exitcode == code
"""
SPAWNED = (
    "test_as_new",
    "test_other_environment",
    "test_ends[exit-3]",
    f"test_ends[signal-{-signal.SIGSEGV}]",
)
LISTENS = """
import socket, time


def test_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 29517))
        server.listen()
        time.sleep(1.5)
        socket.create_connection(server.getsockname()).close()
"""


def run_files(
    folder: Path,
    files: dict[str, str],
    limits: FileLimits,
    left_out: tuple[str, ...] = (),
    *,
    warm_children: bool = False,
    own_network: bool = False,
) -> dict[str, Any]:
    tree, out = folder / "tree", folder / "out"
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    out.mkdir()
    tests = [name for name in files if Path(name).name.startswith("test_")]
    work = FilesToRun(
        tree=str(tree),
        out=str(out),
        files=tuple(FileToRun(path=name, key=Path(name).stem, left_out=left_out) for name in tests),
        cwd="suite",
        device="cpu",
        workers=2,
        limits=limits,
        warm_children=warm_children,
        own_network=own_network,
        preload=("colorsys",),
    )
    (folder / "work.json").write_text(json.dumps(to_json(work)))
    subprocess.run(
        [
            *(sys.executable, "-m", "harness.upstream_tests.in_cell.run_files"),
            *("--work", str(folder / "work.json"), "--report", str(folder / "report.json")),
        ],
        env={**os.environ, "PYTHONPATH": str(IMPORT_ROOT)},
        check=True,
    )
    assert not list(out.glob("*.copy"))
    return {Path(name).stem: json.loads((out / f"{Path(name).stem}.json").read_bytes()) for name in tests}


def ends(result: dict[str, Any]) -> dict[str, str]:
    return {test["id"].rpartition("::")[2]: test["ended"] for test in result["tests"]}


def test_a_crash_is_the_failure_of_one_test_and_the_others_go_on(tmp_path: Path) -> None:
    files = {
        "suite/test_mixed.py": MIXED,
        "suite/sibling.py": "VALUE = 3\n",
        "suite/test_broken.py": "import absent_\n",
    }
    results = run_files(tmp_path, files, FileLimits(test_s=30, file_s=120), ("TestMixed::test_h_left_out",))
    mixed = results["test_mixed"]
    assert ends(mixed) == {
        "test_a_passes": "passed",
        "test_b_fails": "failed",
        "test_c_crashes": "crashed",
        "test_d_after_the_crash": "passed",
        "test_e_exits": "crashed",
        "test_f_skipped": "skipped",
        "test_g_expected": "xfailed",
        "test_parametrised[1]": "passed",
        "test_parametrised[2]": "failed",
    }
    assert mixed["processes"] == 3
    by_name = {test["id"].rpartition("::")[2]: test for test in mixed["tests"]}
    assert by_name["test_b_fails"]["message"] == "AssertionError: 1 != 2"
    assert "SIGSEGV" in by_name["test_c_crashes"]["message"]
    assert "Fatal Python error: Segmentation fault" in by_name["test_c_crashes"]["detail"]
    assert "exit code 0" in by_name["test_e_exits"]["message"]
    broken = results["test_broken"]
    assert not broken["tests"]
    assert "No module named 'absent_'" in broken["uncollected"]


def test_modules_beside_a_file_are_found_also_in_a_package_and_hide_none(tmp_path: Path) -> None:
    program = (
        "import json\nfrom neighbour import VALUE\n\n\ndef test_it():\n    assert VALUE == 4 and json.dumps\n"
    )
    files = {
        "suite/parts/__init__.py": "",
        "suite/parts/neighbour.py": "VALUE = 4\n",
        "suite/parts/json.py": "",
        "suite/parts/test_parts.py": program,
    }
    results = run_files(tmp_path, files, FileLimits(test_s=30, file_s=120))
    assert ends(results["test_parts"]) == {"test_it": "passed"}


def test_a_hang_is_ended_with_all_its_processes_and_named_with_its_stack(tmp_path: Path) -> None:
    result = run_files(tmp_path, {"suite/test_hangs.py": HANGS}, FileLimits(test_s=8, file_s=120))[
        "test_hangs"
    ]
    assert ends(result) == {"test_first": "passed", "test_hangs": "hung", "test_last": "passed"}
    hung = next(test for test in result["tests"] if test["ended"] == "hung")
    assert "time limit of 8 s" in hung["message"]
    assert "in test_hangs" in hung["detail"]
    left = subprocess.run(
        ["pgrep", "-f", "import time; time.sleep(600)"], capture_output=True, text=True, check=False
    )
    assert left.stdout == ""


def test_a_file_that_exceeds_its_limit_says_which_tests_were_not_reached(tmp_path: Path) -> None:
    result = run_files(tmp_path, {"suite/test_hangs.py": HANGS}, FileLimits(test_s=300, file_s=25))[
        "test_hangs"
    ]
    assert ends(result) == {"test_first": "passed", "test_hangs": "hung", "test_last": "not-reached"}


def test_memory_beyond_the_limit_is_the_failure_of_the_test(tmp_path: Path) -> None:
    limits = FileLimits(test_s=60, file_s=60, memory_bytes=400 << 20, alone_bytes=400 << 20)
    result = run_files(tmp_path, {"suite/test_greedy.py": GREEDY}, limits)["test_greedy"]
    assert ends(result) == {"test_memory": "memory"}
    assert result["processes"] == 2
    assert "memory limit of 400 MiB" in result["tests"][0]["message"]


def test_a_test_that_exceeds_the_limit_beside_others_runs_again_alone(tmp_path: Path) -> None:
    limits = FileLimits(test_s=60, file_s=60, memory_bytes=400 << 20, alone_bytes=4 << 30)
    results = run_files(tmp_path, {"suite/test_large.py": LARGE, "suite/test_other.py": LARGE}, limits)
    passed = dict.fromkeys(("test_before", "test_large", "test_after"), "passed")
    assert [ends(results[name]) for name in ("test_large", "test_other")] == [passed, passed]
    assert [results[name]["processes"] for name in ("test_large", "test_other")] == [3, 3]


def test_the_memory_that_is_left_is_that_of_the_machine_or_of_its_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n", encoding="utf-8")
    assert memory_left(tmp_path, tmp_path) == 819_200
    (tmp_path / "memory.max").write_text("600000\n", encoding="utf-8")
    (tmp_path / "memory.current").write_text("100000\n", encoding="utf-8")
    assert memory_left(tmp_path, tmp_path) == 400_000
    (tmp_path / "memory.max").write_text("max\n", encoding="utf-8")
    assert memory_left(tmp_path, tmp_path) == 819_200
    assert memory_left(tmp_path / "absent", tmp_path) == 0


def test_children_are_forked_from_a_prepared_process(tmp_path: Path) -> None:
    files = {"suite/test_spawns.py": SPAWNS}
    results = run_files(tmp_path, files, FileLimits(test_s=60), warm_children=True)
    assert ends(results["test_spawns"]) == dict.fromkeys(SPAWNED, "passed")
    log = (tmp_path / "out" / "test_spawns.log").read_text()
    # Of processes by `spawn`, pytest keeps the output.
    assert log.count("the last words of a rank") == 2


def test_without_preparation_children_import_for_themselves(tmp_path: Path) -> None:
    results = run_files(tmp_path, {"suite/test_spawns.py": SPAWNS}, FileLimits(test_s=60))
    assert ends(results["test_spawns"]) == {**dict.fromkeys(SPAWNED, "passed"), "test_as_new": "failed"}


def test_files_at_a_time_may_use_the_same_port(tmp_path: Path) -> None:
    files = {f"suite/test_port_{name}.py": LISTENS for name in "ab"}
    results = run_files(tmp_path, files, FileLimits(test_s=30), own_network=True)
    assert [ends(results[f"test_port_{name}"]) for name in "ab"] == [{"test_port": "passed"}] * 2
