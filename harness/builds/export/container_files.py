"""Files that run the image of an exported Dockerfile: compose, bake, dev container and Kubernetes Job.

Without Ascend Docker Runtime, a container gets the devices and files of the host that the README of
Ascend/cann-container-image names; with it, the runtime adds them for ASCEND_VISIBLE_DEVICES ("Usage on the
Docker Client" in its documentation).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from harness.builds.engines.cann_environment import SET_ENV
from harness.builds.export.cell_expectations import CHECK, EXPECTATIONS
from harness.builds.export.lock_formats import header
from harness.builds.lock.cell_lock import CellLock
from harness.errors import InputError

#: Device nodes that every card needs, in addition to its own /dev/davinciN.
DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
#: Files and folders of the driver on the host, mounted read-only -> the type of a Kubernetes `hostPath`.
DRIVER_FILES = {
    "/usr/local/dcmi": "Directory",
    "/usr/local/bin/npu-smi": "File",
    "/usr/local/Ascend/driver/lib64": "Directory",
    "/usr/local/Ascend/driver/version.info": "File",
    "/etc/ascend_install.info": "File",
}
#: SoC family -> the resource of Ascend's device plugin for Kubernetes. Sources: MindCluster, "public network
#: addresses" (Ascend910, Ascend310P) and its component ascend-device-plugin; MindIE's deployer for 950.
RESOURCES = {"310p": "huawei.com/Ascend310P", "a5": "huawei.com/npu"}
DEFAULT_RESOURCE = "huawei.com/Ascend910"
#: Architecture -> its name in images and Kubernetes.
PLATFORMS = {"aarch64": "arm64", "x86_64": "amd64"}
# HCCL and data loaders exchange data in shared memory; the default of containers is 64 MiB.
SHARED_MEMORY = "16g"
CHECK_FILE, CELL_FILE = f"/cell/{CHECK}", f"/cell/{EXPECTATIONS}"
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]*", re.IGNORECASE)
_RESOURCE = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9._-]{0,62}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """How the image is built and run.

    cards: NPUs that the container gets. image: name of the built image, "" for the default.
    ascend_runtime: the host has Ascend Docker Runtime. npu_resource: name of the NPUs in Kubernetes, "" for
    that of Ascend's device plugin. buildkit: the builder can mount secrets. InputError for an invalid name.
    """

    cards: int = 1
    image: str = ""
    ascend_runtime: bool = False
    npu_resource: str = ""
    buildkit: bool = True

    def __post_init__(self) -> None:
        if self.image and not _IMAGE.fullmatch(self.image):
            raise InputError(f"{self.image!r} is not the name of an image", fix="write registry/name:tag")
        if self.npu_resource and not _RESOURCE.fullmatch(self.npu_resource):
            raise InputError(
                f"{self.npu_resource!r} is not the name of a Kubernetes resource",
                fix="look it up with `kubectl describe node`; it is written like huawei.com/Ascend910",
            )

    def image_of(self, lock: CellLock) -> str:
        """The name under which these files build and run the image."""
        return self.image or f"npu-matrix/{lock.cell}:latest"

    @property
    def visible(self) -> str:
        """The value of ASCEND_VISIBLE_DEVICES."""
        return ",".join(map(str, range(self.cards)))

    @property
    def devices(self) -> list[str]:
        """The device nodes of the host."""
        return [*(f"/dev/davinci{number}" for number in range(self.cards)), *DEVICES]


def as_compose(lock: CellLock, options: ContainerOptions) -> str:
    """A compose file that builds the image and checks device and packages in it."""
    service: dict[str, Any] = {
        "image": options.image_of(lock),
        "platform": platform_of(lock),
        "build": {"context": ".", "secrets": ["pip.conf"]} if options.buildkit else {"context": "."},
        "shm_size": SHARED_MEMORY,
        "command": _check_command(lock),
    }
    service |= compose_parts(options) if lock.on_npu else {}
    # Without this variable an empty configuration is passed to the build.
    secrets = {"secrets": {"pip.conf": {"file": "${PIP_CONF:-/dev/null}"}}} if options.buildkit else {}
    return _yaml(lock, {"name": _short_name(lock), "services": {"cell": service}, **secrets})


def as_bake(lock: CellLock, options: ContainerOptions) -> str:
    """A file for `docker buildx bake`: one target, with the variable TAG for the image's name."""
    target = {
        "context": ".",
        "dockerfile": "Dockerfile",
        "platforms": [platform_of(lock)],
        "tags": ["${TAG}"],
        "args": {"REGISTRY": "${REGISTRY}"},
        "labels": {"npu-matrix.cell": lock.cell},
    }
    return _json(
        {
            "variable": {"TAG": {"default": options.image_of(lock)}, "REGISTRY": {"default": ""}},
            "group": {"default": {"targets": ["cell"]}},
            "target": {"cell": target},
        }
    )


def as_devcontainer(lock: CellLock, options: ContainerOptions) -> str:
    """A `devcontainer.json` in the folder `.devcontainer` of a build context."""
    arguments = ["--platform", platform_of(lock), "--shm-size", SHARED_MEMORY]
    mounts: list[str] = []
    if lock.on_npu and options.ascend_runtime:
        arguments += ["--runtime", "ascend", "--env", f"ASCEND_VISIBLE_DEVICES={options.visible}"]
    elif lock.on_npu:
        arguments += [f"--device={device}" for device in options.devices]
        mounts = [f"source={path},target={path},type=bind,readonly" for path in DRIVER_FILES]
    return _json(
        {
            "name": lock.cell,
            "build": {"dockerfile": "../Dockerfile", "context": ".."},
            "runArgs": arguments,
            "mounts": mounts,
            "containerEnv": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"},
            # Dev containers replace the entry point of the image, which sets up CANN.
            "postCreateCommand": ["bash", "-c", f"{SET_ENV}; {' '.join(_check_command(lock))}"],
        }
    )


def as_kubernetes(lock: CellLock, options: ContainerOptions) -> str:
    """A Kubernetes Job that checks device and packages; replace its command to train."""
    container: dict[str, Any] = {
        "name": "cell",
        "image": options.image_of(lock),
        "imagePullPolicy": "IfNotPresent",
        "args": _check_command(lock),
    }
    resource = npu_resource(lock.axes.get("soc", ""), options) if lock.on_npu else ""
    added, volumes = pod_parts(resource, options)
    labels = {"npu-matrix.cell": _short_name(lock)}
    job = kubernetes_job(_short_name(lock), lock.arch, container | added, volumes, labels)
    return _yaml(lock, job)


def npu_resource(soc: str, options: ContainerOptions) -> str:
    """The name of the NPUs of a SoC family in Kubernetes."""
    return options.npu_resource or RESOURCES.get(soc.lower(), DEFAULT_RESOURCE)


def pod_parts(resource: str, options: ContainerOptions) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a container of Kubernetes has for its NPUs, and the volumes of its pod.

    resource: the name of the NPUs, "" for a container without. Without Ascend Docker Runtime the files of the
    driver are mounted; with it, the device plugin names the devices to the runtime, which adds both.
    """
    mounts: list[dict[str, Any]] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108 - there
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    container: dict[str, Any] = {"volumeMounts": mounts}
    if not resource:
        return container, volumes
    cards = {resource: options.cards}
    container["resources"] = {"requests": cards, "limits": dict(cards)}
    for number, (path, kind) in enumerate({} if options.ascend_runtime else DRIVER_FILES.items()):
        mounts.append({"name": f"driver-{number}", "mountPath": path, "readOnly": True})
        volumes.append({"name": f"driver-{number}", "hostPath": {"path": path, "type": kind}})
    return container, volumes


def kubernetes_job(
    name: str,
    arch: str,
    container: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """A Kubernetes Job of one container that is not started again."""
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/arch": PLATFORMS.get(arch, arch)},
        "containers": [dict(container)],
        "volumes": list(volumes),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": dict(labels)}, "spec": pod}},
    }


def compose_parts(options: ContainerOptions) -> dict[str, Any]:
    """What a service of compose has for its NPUs: the runtime, or devices and files of the driver."""
    if options.ascend_runtime:
        return {"runtime": "ascend", "environment": {"ASCEND_VISIBLE_DEVICES": options.visible}}
    return {"devices": options.devices, "volumes": [f"{path}:{path}:ro" for path in DRIVER_FILES]}


def platform_of(lock: CellLock) -> str:
    """The cell's platform as images name it, for example `linux/arm64`."""
    return f"linux/{PLATFORMS.get(lock.arch, lock.arch)}"


def _short_name(lock: CellLock) -> str:
    """A name for Kubernetes and compose: at most 63 characters, without a dash at its end."""
    return lock.cell[:63].rstrip("-")


def _check_command(lock: CellLock) -> list[str]:
    return ["python3", CHECK_FILE, "device" if lock.on_npu else "after", CELL_FILE]


def _yaml(lock: CellLock, content: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(content), sort_keys=False, width=120)
    return "\n".join([*header(lock), text])


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
