"""Files that run the image of an exported Dockerfile: compose, bake, dev container and Kubernetes Job.

The devices and folders of the host are those that the README of Ascend/cann-container-image mounts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from harness.builds.export.cell_expectations import CHECK, EXPECTATIONS, runs_on_npu
from harness.builds.export.lock_formats import header
from harness.builds.lock.cell_lock import CellLock

#: Device nodes that every card needs, in addition to its own /dev/davinciN.
DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
#: Files of the driver on the host, mounted read-only.
DRIVER_FILES = (
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
)
#: SoC family -> the resource of Ascend's device plugin for Kubernetes (MindCluster).
RESOURCES = {"310p": "huawei.com/Ascend310P"}
DEFAULT_RESOURCE = "huawei.com/Ascend910"
#: Architecture -> its name in images and Kubernetes.
PLATFORMS = {"aarch64": "arm64", "x86_64": "amd64"}
# HCCL and data loaders exchange data in shared memory; the default of containers is 64 MiB.
SHARED_MEMORY = "16g"
CHECK_FILE, CELL_FILE = f"/cell/{CHECK}", f"/cell/{EXPECTATIONS}"


def as_compose(lock: CellLock, cards: int) -> str:
    """A compose file that builds the image and checks device and packages in it. cards: cards of the host."""
    service: dict[str, Any] = {
        "image": image_name(lock),
        "platform": platform_of(lock),
        "build": {"context": ".", "secrets": ["pip.conf"]},
        "shm_size": SHARED_MEMORY,
        "command": _check_command(lock),
    }
    if runs_on_npu(lock):
        service["devices"] = [*_cards(cards), *DEVICES]
        service["volumes"] = [f"{path}:{path}:ro" for path in DRIVER_FILES]
    # Without this variable an empty configuration is passed to the build.
    secrets = {"pip.conf": {"file": "${PIP_CONF:-/dev/null}"}}
    return _yaml(lock, {"name": _short_name(lock), "services": {"cell": service}, "secrets": secrets})


def as_bake(lock: CellLock) -> str:
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
            "variable": {"TAG": {"default": image_name(lock)}, "REGISTRY": {"default": ""}},
            "group": {"default": {"targets": ["cell"]}},
            "target": {"cell": target},
        }
    )


def as_devcontainer(lock: CellLock, cards: int) -> str:
    """A `devcontainer.json` in the folder `.devcontainer` of a build context."""
    arguments = ["--platform", platform_of(lock), "--shm-size", SHARED_MEMORY]
    mounts: list[str] = []
    if runs_on_npu(lock):
        arguments += [f"--device={device}" for device in (*_cards(cards), *DEVICES)]
        mounts = [f"source={path},target={path},type=bind,readonly" for path in DRIVER_FILES]
    return _json(
        {
            "name": lock.cell,
            "build": {"dockerfile": "../Dockerfile", "context": ".."},
            "runArgs": arguments,
            "mounts": mounts,
            "containerEnv": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"},
            "postCreateCommand": " ".join(_check_command(lock)),
        }
    )


def as_kubernetes(lock: CellLock, cards: int) -> str:
    """A Kubernetes Job that checks device and packages; replace its command to train."""
    container: dict[str, Any] = {
        "name": "cell",
        "image": image_name(lock),
        "args": _check_command(lock),
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108 - in the container
    }
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if runs_on_npu(lock):
        resource = {RESOURCES.get(lock.axes.get("soc", "").lower(), DEFAULT_RESOURCE): cards}
        container["resources"] = {"requests": resource, "limits": dict(resource)}
        for number, path in enumerate(DRIVER_FILES):
            container["volumeMounts"].append(
                {"name": f"driver-{number}", "mountPath": path, "readOnly": True}
            )
            volumes.append({"name": f"driver-{number}", "hostPath": {"path": path}})
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/arch": PLATFORMS.get(lock.arch, lock.arch)},
        "containers": [container],
        "volumes": volumes,
    }
    labels = {"npu-matrix.cell": _short_name(lock)}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _short_name(lock), "labels": labels},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": dict(labels)}, "spec": pod}},
    }
    return _yaml(lock, job)


def image_name(lock: CellLock) -> str:
    """The name under which these files build and run the image."""
    return f"npu-matrix/{lock.cell}:latest"


def platform_of(lock: CellLock) -> str:
    """The cell's platform as images name it, for example `linux/arm64`."""
    return f"linux/{PLATFORMS.get(lock.arch, lock.arch)}"


def _short_name(lock: CellLock) -> str:
    """A name for Kubernetes and compose: at most 63 characters, without a dash at its end."""
    return lock.cell[:63].rstrip("-")


def _cards(cards: int) -> list[str]:
    return [f"/dev/davinci{number}" for number in range(cards)]


def _check_command(lock: CellLock) -> list[str]:
    return ["python3", CHECK_FILE, "device" if runs_on_npu(lock) else "after", CELL_FILE]


def _yaml(lock: CellLock, content: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(content), sort_keys=False, width=120)
    return "\n".join([*header(lock), text])


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
