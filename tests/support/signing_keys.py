"""Key pairs of OpenSSH for tests of signed outcomes. Tests are not run where ssh-keygen is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_key(folder: Path, name: str) -> tuple[Path, str]:
    """A new key pair without a passphrase: the file of the private key, and the public key as one line."""
    program = shutil.which("ssh-keygen")
    if program is None:
        pytest.skip("not run: ssh-keygen is not installed (on Debian: apt-get install openssh-client)")
    file = folder / name
    subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(file)], check=True)
    return file, file.with_suffix(".pub").read_text("ascii").strip()
