"""Key pairs of OpenSSH for tests of signed outcomes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from missing_programs import required_program


def make_key(folder: Path, name: str) -> tuple[Path, str]:
    """A new key pair without a passphrase: the file of the private key, and the public key as one line."""
    program = required_program("ssh-keygen", "openssh-client")
    file = folder / name
    subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(file)], check=True)
    return file, file.with_suffix(".pub").read_text("ascii").strip()
