"""Docker. Layers are built with BuildKit if possible, otherwise by running their commands in containers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from harness.builds.engines.build_time_files import secret_files
from harness.builds.engines.engine import (
    BUILD_TIME_FOLDER,
    BuildError,
    BuildTimeFiles,
    Image,
    LayerBuild,
    layer_image,
)
from harness.builds.engines.image_layers import Layer
from harness.builds.engines.sdk_engine import SHELL, SdkEngine, storage_failure
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import InfrastructureError
from harness.sources.packages.fetch_failure import fetch_failure

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
# From this version on, the client needs the plugin buildx for BuildKit.
WITHOUT_OWN_BUILDKIT = 23
SECONDS_TO_ASK = 20.0
SECONDS_TO_BUILD = 3600.0


class DockerEngine(SdkEngine):
    """Docker at DOCKER_HOST, or at its usual socket."""

    name = "docker"

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ.get("DOCKER_HOST") or DEFAULT_ADDRESS)
        self._environ = dict(environ)
        self._builder = ""

    @property
    def builder(self) -> str:
        """`buildkit` if the command `docker` can build with BuildKit, otherwise `steps`."""
        if not self._builder:
            self._builder = "buildkit" if _client_has_buildkit(self._environ) else "steps"
        return self._builder

    def build(self, request: LayerBuild) -> Image:
        """Add a layer, without BuildKit if it needs folders of the host, which BuildKit cannot mount."""
        needs_folders = any(mount.source.is_dir() for mount in request.build_files.mounts)
        if self.builder == "buildkit" and not needs_folders:
            return self._build_with_buildkit(request)
        return super().build(request)

    def _build_with_buildkit(self, request: LayerBuild) -> Image:
        layer, build_files = request.layer, request.build_files
        with temporary_folder() as folder, secret_files(build_files.secrets) as secrets:
            # A sub-folder, because the file that names the owner must not be part of the build.
            context = folder / "context"
            context.mkdir()
            argv = ["docker", "build", "--progress", "plain", "--network", "host"]
            argv += ["--tag", layer_image(layer.key), "--file", str(context / "Dockerfile")]
            for label, value in request.labels.items():
                argv += ["--label", f"{label}={value}"]
            for secret in secrets:
                argv += ["--secret", f"id={PurePosixPath(secret.target).name},src={secret.source}"]
            _write_files(context, layer, build_files)
            context.joinpath("Dockerfile").write_text(
                _dockerfile(self._name(request.parent), layer, build_files), "utf-8"
            )
            output = self._docker([*argv, str(context)], layer.name)
        request.log(output)
        image = self.image(layer_image(layer.key))
        if image is None:
            raise InfrastructureError(
                f"docker built the layer {layer.name} but does not have it", fix="run again"
            )
        return image

    def _name(self, parent: str) -> str:
        """A name of the image, because BuildKit would interpret an id as a name and try to pull it."""
        with self._errors("look for an image"):
            tags = self.client.api.inspect_image(parent).get("RepoTags") or []
        return tags[0] if tags else parent

    def _docker(self, argv: list[str], layer: str) -> str:
        environ = {**self._environ, "DOCKER_BUILDKIT": "1", "DOCKER_HOST": self.address}
        try:
            done = subprocess.run(
                argv,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=SECONDS_TO_BUILD,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(
                "the command docker could not build an image", why=str(error), fix="run again"
            ) from error
        if done.returncode == 0:
            return done.stdout
        if failure := fetch_failure(done.stdout):
            raise failure.error()
        if problem := storage_failure(self.name, "build a layer", done.stdout):
            raise problem
        raise BuildError(layer, done.stdout)


def _client_has_buildkit(environ: Mapping[str, str]) -> bool:
    program = shutil.which("docker", path=environ.get("PATH"))
    if program is None:
        return False
    if _ask([program, "buildx", "version"]) is not None:
        return True
    version = _ask([program, "version", "--format", "{{.Client.Version}}"]) or ""
    major = version.strip().partition(".")[0]
    return major.isdecimal() and int(major) < WITHOUT_OWN_BUILDKIT


def _ask(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=SECONDS_TO_ASK, check=False, env=dict(os.environ)
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # The client prints its own version even if the daemon does not respond.
    return done.stdout if done.returncode == 0 or "version" in argv[1] else None


def _write_files(context: Path, layer: Layer, build_files: BuildTimeFiles) -> None:
    for path, data in layer.files.items():
        target = context / "files" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for mount in build_files.mounts:
        target = context / "build_files" / PurePosixPath(mount.target).name
        target.parent.mkdir(exist_ok=True)
        try:
            os.link(mount.source, target)
        except OSError:
            shutil.copy2(mount.source, target)


def _dockerfile(parent: str, layer: Layer, build_files: BuildTimeFiles) -> str:
    shell = ", ".join(f'"{word}"' for word in SHELL)
    lines = [f"FROM {parent}", f"SHELL [{shell}]"]
    if layer.files:
        lines.append("COPY files/ /")
    mounts = [f"--mount=type=tmpfs,target={BUILD_TIME_FOLDER}"]
    mounts += [
        f"--mount=type=secret,id={name},target={BUILD_TIME_FOLDER}/{name}" for name in build_files.secrets
    ]
    mounts += [
        f"--mount=type=bind,source=build_files/{PurePosixPath(mount.target).name},target={mount.target}"
        for mount in build_files.mounts
    ]
    commands = " && \\\n    ".join(layer.commands) or "true"
    lines.append("RUN " + " \\\n    ".join(mounts) + f" \\\n    {commands}")
    return "\n".join(lines) + "\n"
