"""Rehearses first contacts that something is in the way of: what `first-contact` says, and what it writes.

Whatever happens, the command has to end in time, without a traceback, and neither its output nor its file may
contain a credential.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from harness.devices.cards.card_leases import FOLDER_VARIABLE, CardLeases
from harness.devices.stand_in.host_tree import write_host
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK
from harness.settings import FOUND, Settings
from harness.workspace.execution.rehearsal import (
    HostGroup,
    host_folder,
    login_command,
    own_command,
    rehearsal_environment,
)
from harness.workspace.execution.rehearsed_faults import RehearsedFault

#: Long, because environments are built meanwhile.
SECONDS_TO_END = 3600.0
_NO_CANN = "7.0.0"
#: In the mount namespace of the stand-in: a disk of one block for the state, then the command.
_FULL_DISK = 'mkdir -p "$0" && mount -t tmpfs -o size=4k none "$0" && exec "$@"'
#: Variables of pods, with a credential each: of a known form, of a known name, of a name that only its value
#: betrays, and in an address.
_CREDENTIALS = {
    "HF_TOKEN": "hf_{}",
    "WANDB_API_KEY": "{}",
    "CLUSTER_PASSWORD": "{}",
    "EXTRA_INDEX": "https://somebody:{}@index.invalid/simple",
}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Something that is in the way. told: what `first-contact` has to say. codes: its possible exit codes.

    around: entered while the command runs, with the folder of the card leases. prefix: runs the command in
    the stand-in, with the folder of the state as its first argument. again: whether the command is killed
    once before it is run.
    """

    name: str
    told: str
    codes: tuple[int, ...] = (EXIT_OK, EXIT_INCOMPLETE)
    arguments: tuple[str, ...] = ()
    around: Callable[[Path, int], AbstractContextManager[object]] = lambda _folder, _cards: nullcontext()
    prefix: str = ""
    cann: str = ""
    again: bool = False
    writes: bool = True


def _leased(folder: Path, cards: int) -> AbstractContextManager[object]:
    return CardLeases(folder).lease(range(cards), cards, "a training of somebody")


def situations(nowhere: Path) -> Iterator[Situation]:
    """The situations, cheap ones first. nowhere: a file in a folder that does not exist."""
    yield Situation(
        name="the file cannot be written",
        told="name another file with --out",
        codes=(EXIT_BAD_INPUT,),
        arguments=("--out", str(nowhere)),
        writes=False,
    )
    yield Situation(
        name="the host has another CANN than the cells",
        told=f"this host has {_NO_CANN}",
        codes=(EXIT_NOTHING_SELECTED,),
        cann=_NO_CANN,
        writes=False,
    )
    yield Situation(
        name="the disk is full",
        told="free space on that disk",
        codes=(EXIT_INCOMPLETE,),
        prefix=_FULL_DISK,
        writes=False,
    )
    yield Situation(
        name="all cards are leased",
        told="while all cards were leased: a training of somebody",
        codes=(EXIT_INCOMPLETE,),
        arguments=("--minutes", "1"),
        around=_leased,
    )
    yield Situation(name="it was killed, and is run again", told="file: ", again=True)


def rehearse_contacts(group: HostGroup, folder: Path, settings: Settings) -> Iterator[RehearsedFault]:
    """Run `first-contact` on the stand-in host of the group in each situation, with credentials around."""
    out = folder / "first-contact" / f"{group.name}-situation.tar.gz"
    out.parent.mkdir(parents=True, exist_ok=True)
    for situation in situations(folder / "nowhere" / out.name):
        # With an installed environment, the cell has the CANN of the host.
        if situation.cann and settings["engine"] == FOUND:
            continue
        out.unlink(missing_ok=True)
        credentials = {name: form.format(secrets.token_hex(20)) for name, form in _CREDENTIALS.items()}
        code, output = _run(situation, group, folder, settings, out, credentials)
        problem = why_wrong(situation, code, output, out, credentials)
        told = next((line.strip() for line in output.splitlines() if situation.told in line), "")
        yield RehearsedFault(fault=situation.name, told=told, problem=problem)


def _run(
    situation: Situation,
    group: HostGroup,
    folder: Path,
    settings: Settings,
    out: Path,
    credentials: Mapping[str, str],
) -> tuple[int, str]:
    """The exit code and the output of the command."""
    place = host_folder(group, folder, f"-{situation.cann}" if situation.cann else "")
    files = write_host(place, replace(group.host, cann=situation.cann or group.host.cann))
    state, leases = folder / "situation", folder / "situation-leases"
    shutil.rmtree(state, ignore_errors=True)
    only = () if settings["engine"] == FOUND else ("--only", ",".join(group.ids))
    arguments = ("first-contact", "--no-predict", "--out", str(out), *only, *situation.arguments)
    # The last of two equal options counts.
    command = own_command(folder, settings, ("--state", str(state), *arguments))
    if situation.prefix:
        command = ["sh", "-c", situation.prefix, str(state), *command]
    environ = {**rehearsal_environment(place, settings), **credentials, FOLDER_VARIABLE: str(leases)}
    argv = login_command(place, files, command)
    with situation.around(leases, group.host.shape.devices):
        if situation.again:
            _kill_half_way(argv, environ, settings.root)
        done = subprocess.run(
            argv,
            cwd=settings.root,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS_TO_END,
        )
    return done.returncode, done.stdout


def _kill_half_way(argv: Sequence[str], environ: Mapping[str, str], root: Path) -> None:
    """Kill the command while the first task runs."""
    with subprocess.Popen(
        argv, cwd=root, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if line.startswith("start "):
                time.sleep(1.0)
                break
        process.send_signal(signal.SIGKILL)


def why_wrong(situation: Situation, code: int, output: str, out: Path, credentials: Mapping[str, str]) -> str:
    """What the command did or said wrongly, or ""."""
    values = [value.rpartition("@")[0].rpartition(":")[2] or value for value in credentials.values()]
    if "Traceback (most recent call last)" in output:
        return f"a traceback: {output[-500:]}"
    if code not in situation.codes:
        return f"exit {code}: {output[-500:]}"
    if situation.told not in output:
        return f"it does not say: {situation.told}"
    if situation.writes != out.is_file():
        return "it wrote a file" if out.is_file() else "it wrote no file"
    if any(value in output for value in values):
        return "the output contains a credential"
    if out.is_file() and any(value.encode() in data for data in _members(out) for value in values):
        return "the file contains a credential"
    return ""


def _members(archive: Path) -> Iterator[bytes]:
    with tarfile.open(archive) as opened:
        for member in opened:
            if (stream := opened.extractfile(member)) is not None:
                yield stream.read()
