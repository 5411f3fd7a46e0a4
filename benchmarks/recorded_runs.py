"""What launch scripts really run: bash executes them with stubs for programs, which record their arguments.

Nothing but bash and programs that change no files is real. The sandbox has no network, no environment of the
user, and a folder of its own. This is a tool of benchmarks: `lint` never executes a script.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import CannotRunError

RECORDED = ("python", "python3", "torchrun", "ray", "accelerate", "deepspeed", "srun", "sbatch")
#: Programs that run another one.
RUNNERS = ("uv", "conda", "poetry", "numactl", "taskset", "stdbuf")
HARMLESS = tuple(
    re.split(
        r"\s+",
        "awk basename bash cat cut date dirname env expr grep head hostname ls mkdir mktemp nohup nproc "
        "paste printf readlink realpath rev sed seq sh sort tail tee timeout touch tr true uname wc xargs",
    )
)
SECONDS = 20
ARGUMENTS = tuple(f"value_of_the_run_{number}" for number in range(1, 10))
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
RECORD = """#!/bin/bash
file=$(/usr/bin/mktemp "$RECORDS/$(/usr/bin/date +%s%N).XXXX")
/usr/bin/printf '%s\\0' "${0##*/}" "$@" > "$file"
"""
# Programs that do not exist here, such as conda and npu-smi, do nothing and succeed; so does `ulimit`.
UNKNOWN_PROGRAMS = "command_not_found_handle() { return 0; }\nulimit() { return 0; }\n"
MODULE_OPTIONS = re.compile(r"-m|--module")
PYTHON = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun)")


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A Python program that a script started: its module or file, and the words after it."""

    entry: str
    words: tuple[str, ...]


class Sandbox:
    """A folder with stubs, in which scripts of a checkout run. Use `sandbox()`."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        self._stubs, self._home, self._start = folder / "stubs", folder / "home", folder / "start"
        self._checkout = checkout
        for made in (self._stubs, self._home):
            made.mkdir(mode=0o777)
            made.chmod(0o777)
        self._start.write_text(UNKNOWN_PROGRAMS)
        for name in (*RECORDED, *RUNNERS):
            (self._stubs / name).write_text(RECORD)
            (self._stubs / name).chmod(0o755)
        (self._stubs / "sleep").symlink_to("/bin/true")
        for name in HARMLESS:
            real = shutil.which(name)
            if real:
                (self._stubs / name).symlink_to(real)

    def runs(self, script: str, variables: Mapping[str, str]) -> list[RecordedRun]:
        """The Python programs that a script of the checkout starts.

        variables: the environment. The script gets arguments only if it starts nothing without them.
        """
        return self._runs(script, variables, ()) or self._runs(script, variables, ARGUMENTS)

    def runs_without_arguments(self, script: str, variables: Mapping[str, str]) -> list[RecordedRun]:
        """The Python programs that a script of the checkout starts without arguments."""
        return self._runs(script, variables, ())

    def _runs(self, script: str, variables: Mapping[str, str], given: Sequence[str]) -> list[RecordedRun]:
        records = Path(tempfile.mkdtemp(dir=self._home))
        records.chmod(0o777)
        environment = {
            "PATH": str(self._stubs),
            "HOME": str(self._home),
            "RECORDS": str(records),
            "BASH_ENV": str(self._start),
            **variables,
        }
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [*_isolation(), "/bin/bash", script, *given],
                cwd=self._checkout,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found = []
        for record in sorted(records.iterdir()):
            words = record.read_bytes().decode("utf-8", "replace").split("\0")[:-1]
            run = python_run(words)
            if run is not None:
                found.append(run)
        shutil.rmtree(records, ignore_errors=True)
        return found


@contextmanager
def sandbox(checkout: Path) -> Iterator[Sandbox]:
    """A sandbox for the scripts of a checkout; CannotRunError if this machine cannot isolate them."""
    probe = subprocess.run([*_isolation(), "/bin/true"], capture_output=True, check=False)
    if probe.returncode:
        raise CannotRunError(
            "scripts cannot be run without a network here", "allow user namespaces (`unshare --net`)"
        )
    with tempfile.TemporaryDirectory(prefix="npu-matrix-bash-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield Sandbox(folder, checkout)


def _isolation() -> list[str]:
    """The command that starts another one without a network; when it dies, its processes die."""
    isolated = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    if os.geteuid() == 0:
        isolated = [*(word for word in isolated if word != "--map-root-user"), *NOBODY]
    # The environment of the script finds stubs only.
    return [shutil.which(word) or word if word in ("unshare", "setpriv") else word for word in isolated]


def python_run(words: Sequence[str]) -> RecordedRun | None:
    """The Python program that a command line starts, also after `ray job submit ... --`; None for none."""
    for position, word in enumerate(words):
        if not PYTHON.fullmatch(word) and words[:2] != ["uv", "run"]:
            continue
        for index in range(position + 1, len(words)):
            if MODULE_OPTIONS.fullmatch(words[index]) and index + 1 < len(words):
                return RecordedRun(entry=words[index + 1], words=tuple(words[index + 2 :]))
            if words[index].endswith(".py"):
                return RecordedRun(entry=words[index], words=tuple(words[index + 1 :]))
    return None
