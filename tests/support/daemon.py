"""A Docker daemon of one's own, for tests and benchmarks: private socket and data, started and stopped at will."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from harness.builds.engines.docker_engine import DockerEngine
from harness.errors import HarnessError

# A daemon that is late on a loaded machine is none that fails.
SECONDS_TO_START = SECONDS_TO_STOP = 300.0
PLACES = "/usr/sbin:/usr/bin:/sbin:/bin"


class NoDaemonError(Exception):
    """There is no dockerd here, or it does not start."""


class Daemon:
    """Needs root; `address` is what DOCKER_HOST has to be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = shutil.which("dockerd", path=PLACES)
        if program is None:
            raise NoDaemonError("there is no dockerd here: apt-get install docker.io")
        # Containers here need no network, and the daemon's rules for one would be this machine's.
        argv = [program, "--host", self.address, "--bridge", "none", "--iptables=false"]
        for option, name in (("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")):
            argv += [option, str(self.folder / name)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoDaemonError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop it, and with it every container."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS_TO_STOP)
            self._process = None
            # It leaves this mount behind, and with it the folder.
            subprocess.run(
                ["umount", str(self.folder / "exec/netns/default")], capture_output=True, check=False
            )

    def _answers(self) -> bool:
        engine = DockerEngine({"DOCKER_HOST": self.address})
        try:
            engine.info()
        except HarnessError:
            return False
        finally:
            engine.close()
        return True
