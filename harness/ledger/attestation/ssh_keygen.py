"""Signs and verifies bytes with OpenSSH (`ssh-keygen -Y`). Private keys are read by ssh-keygen only."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InfrastructureError, InputError, Location

#: What signatures of outcomes are made for; a signature that the same key made for anything else is refused.
NAMESPACE = "npu-matrix"
#: Seconds after which a verification, which needs neither network nor user, has failed.
VERIFY_SECONDS = 60.0
#: What differs between two messages of ssh-keygen about the same key: the temporary file and the time of day.
_PASSING = re.compile(r"^\S*/allowed_signers:\d+: |verify time \S+ [<>] ")
_INSTALL = "install OpenSSH (on Debian: apt-get install openssh-client)"


@dataclass(frozen=True, kw_only=True)
class Signer:
    """A runner of matrix.yaml whose signatures count.

    keys: its public keys, each as a line of an allowed-signers file without the name. namespace: what its
    signatures are made for. revoked: an OpenSSH key revocation list or a list of public keys, or None.
    socs: the SoC names of its NPUs.
    """

    name: str
    keys: tuple[str, ...]
    namespace: str = NAMESPACE
    revoked: Path | None = None
    socs: frozenset[str] = frozenset()


def sign(content: bytes, key_file: Path, namespace: str) -> str:
    """The signature of `content` by the private key in `key_file`, or by the agent's key if it is public.

    InputError if ssh-keygen cannot use the key, InfrastructureError if ssh-keygen is not installed.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise InfrastructureError(
            "outcomes cannot be signed", why="ssh-keygen is not installed on this machine", fix=_INSTALL
        )
    with tempfile.TemporaryDirectory(prefix="npu-matrix-sign-") as folder:
        message = Path(folder) / "statement"
        message.write_bytes(content)
        # ssh-keygen asks for a passphrase on the terminal.
        done = subprocess.run(
            [program, "-q", "-Y", "sign", "-f", str(key_file.absolute()), "-n", namespace, str(message)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        signature = message.with_name("statement.sig")
        if done.returncode or not signature.is_file():
            raise InputError(
                "ssh-keygen could not sign with this key",
                where=Location(key_file),
                why=_first_line(done.stderr),
                fix="name the file of an OpenSSH private key, or of a public key whose private key is in the "
                "agent",
            )
        return signature.read_text("ascii")


def refusal(content: bytes, signature: str, signer: Signer) -> str:
    """Why `signature` is not a valid signature of `content` by a key of `signer`, or "" if it is valid."""
    program = shutil.which("ssh-keygen")
    if program is None:
        return "its signature cannot be verified, because ssh-keygen is not installed on this machine"
    if signer.revoked is not None and not signer.revoked.is_file():
        return f"the list of revoked keys of the runner {signer.name!r} cannot be read: {signer.revoked}"
    with tempfile.TemporaryDirectory(prefix="npu-matrix-verify-") as folder:
        allowed, signed = Path(folder) / "allowed_signers", Path(folder) / "signature"
        allowed.write_text("".join(f"{signer.name} {key}\n" for key in signer.keys), "utf-8")
        signed.write_text(signature, "utf-8")
        arguments = ["-f", str(allowed), "-I", signer.name, "-n", signer.namespace, "-s", str(signed)]
        if signer.revoked is not None:
            arguments += ["-r", str(signer.revoked)]
        try:
            done = subprocess.run(
                [program, "-Y", "verify", *arguments],
                input=content,
                capture_output=True,
                timeout=VERIFY_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"its signature could not be verified: {error}"
    if done.returncode == 0:
        return ""
    why = _PASSING.sub("", _first_line(done.stderr) or _first_line(done.stdout))
    why = why or f"exit code {done.returncode}"
    return f"its signature is not one by a valid key of the runner {signer.name!r}: {why}"


def _first_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else ""
