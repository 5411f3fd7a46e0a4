"""A private Docker daemon for tests and benchmarks, with its own socket and data folder."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from harness.builds.engines.docker_engine import DockerEngine
from harness.builds.engines.sdk_engine import SdkEngine
from harness.errors import HarnessError

# Long, because a daemon on a loaded machine can take minutes to start.
SECONDS_TO_START = SECONDS_TO_STOP = 300.0
SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class NoDaemonError(Exception):
    """This host has no dockerd, or it does not start."""


class Daemon:
    """A Docker daemon; starting it requires root. address: the value for DOCKER_HOST."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it responds."""
        program = shutil.which("dockerd", path=SEARCH_PATH)
        if program is None:
            raise NoDaemonError("dockerd is not installed: apt-get install docker.io")
        # The containers need no network, and the daemon would change the firewall rules of this machine.
        argv = [program, "--host", self.address, "--bridge", "none", "--iptables=false"]
        for option, name in (("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")):
            argv += [option, str(self.folder / name)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._responds():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoDaemonError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the daemon and all of its containers."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS_TO_STOP)
            self._process = None
            # The daemon does not unmount this, and then its folder could not be removed.
            subprocess.run(
                ["umount", str(self.folder / "exec/netns/default")], capture_output=True, check=False
            )

    def _responds(self) -> bool:
        engine = DockerEngine({"DOCKER_HOST": self.address})
        try:
            engine.info()
        except HarnessError:
            return False
        finally:
            engine.close()
        return True


def image_history(engine: SdkEngine, image: str) -> str:
    """Everything that an image records about how it was made: commands, environment, labels."""
    steps = [str(step) for step in engine.client.api.history(image)]
    return "\n".join([*steps, str(engine.client.api.inspect_image(image))])
