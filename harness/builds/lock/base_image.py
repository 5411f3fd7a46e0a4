"""The base image of a cell: the CANN image that Ascend publishes for its CANN, chip and Python.

The tags follow `<cann>-<chip>-<system>-py<python>` (docs/release_process.md of Ascend/cann-container-image).
Not every combination is published: CANN 8.3.RC1, for example, has images for Python 3.11 only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from harness.errors import InputError

#: SoC family -> the chip in the tags of CANN images.
CHIPS = {"a2": "910b", "a3": "a3", "a5": "950", "310p": "310p", "910": "910"}
#: SoC family -> the SOC_VERSION for which vllm-ascend compiles its kernels (its Dockerfiles and verl's).
SOC_VERSIONS = {
    "a2": "ascend910b1",
    "a3": "ascend910_9392",
    "a5": "ascend950dt_9582",
    "310p": "ascend310p1",
}
IMAGE_SYSTEM = "ubuntu22.04"
#: Where Ascend publishes the same images (README and workflows of Ascend/cann-container-image; verl's
#: Dockerfiles use AscendHub).
REGISTRIES = {
    "quay": "quay.io/ascend/cann",
    "dockerhub": "docker.io/ascendai/cann",
    "ascendhub": "swr.cn-south-1.myhuaweicloud.com/ascendhub/cann",
}
LISTED = "2026-08-22"
# CANN, chips and Pythons of the published images with Ubuntu 22.04, as of LISTED: the folders and
# cann_publish_version.json of Ascend/cann-container-image, and the Dockerfiles of vllm-ascend.
_PUBLISHED = """\
8.0.0 | 910b | 3.10
8.0.rc3 | 910b | 3.10
8.1.rc1 | 310p 910b a3 | 3.10 3.11
8.1.rc1.alpha001 | 910b | 3.10
8.2.rc1 | 310p 910 910b a3 | 3.11
8.2.rc1.alpha001 | 910b | 3.10
8.2.rc1.alpha002 | 910b | 3.10
8.2.rc1.alpha003 | 310p 910 910b a3 | 3.11
8.2.rc2 | 310p 910 910b a3 | 3.11
8.3.rc1 | 310p 910 910b a3 | 3.11
8.3.rc1.alpha001 | 310p 910 910b a3 | 3.11
8.3.rc1.alpha002 | 310p 910 910b a3 | 3.11
8.3.rc1.alpha003 | 310p 910 910b a3 | 3.11
8.3.rc2 | 310p 910 910b a3 | 3.11
8.5.0 | 310p 910 | 3.11
8.5.0 | 910b a3 | 3.10 3.11
8.5.0.alpha001 | 310p 910 910b a3 | 3.11
8.5.0.alpha002 | 310p 910 910b a3 | 3.11
8.5.1 | 310p 910 | 3.11 3.12
8.5.1 | 910b a3 | 3.10 3.11 3.12
8.5.2 | 310p 910 | 3.11
8.5.2 | 910b a3 | 3.10 3.11
9.0.0 | 310p 910 910b 950 a3 | 3.10 3.11 3.12
9.0.0-beta.1 | 310p 910 910b a3 | 3.11
9.0.0-beta.2 | 310p 910 | 3.11
9.0.0-beta.2 | 910b a3 | 3.10 3.11
9.0.1 | 310p 910 910b 950 a3 | 3.10 3.11 3.12
9.1.0 | 310p 910b 950 a3 | 3.12
9.1.0-beta.1 | 310p 910 910b 950 a3 | 3.10 3.11 3.12
9.1.0-beta.3 | 310p 910 910b 950 a3 | 3.10 3.11 3.12
"""


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """reference: the image with its tag. python: the Python in it, "" if that is not known.

    notice: what a user must know about it; "" for a published image with the cell's Python.
    """

    reference: str
    python: str = ""
    notice: str = ""


def default_base_image(axes: Mapping[str, str], python: str, registry: str = "") -> BaseImage:
    """The base image for the axes `cann` and `soc` of a cell.

    registry: a key of `REGISTRIES` or the name of an image without its tag. Cells on the simulated device,
    which need no CANN, and cells without CANN get an image of Python. InputError for a SoC family without
    CANN images.
    """
    minor = ".".join(python.split(".")[:2])
    cann, soc = axes.get("cann", ""), axes.get("soc", "").lower()
    if not cann or not soc or axes.get("device") == "sim":
        return BaseImage(reference=f"python:{minor}-slim", python=minor)
    if soc not in CHIPS:
        raise InputError(
            f"no CANN image is known for the SoC family {soc}",
            why=f"Ascend publishes images for {', '.join(sorted(CHIPS))}",
            fix="give an image with --base-image",
        )
    release, chip = image_release(cann), CHIPS[soc]
    name = REGISTRIES.get(registry or "quay", registry)
    published = _published().get((release, chip), ())
    chosen = minor if minor in published or not published else published[-1]
    reference = f"{name}:{release}-{chip}-{IMAGE_SYSTEM}-py{chosen}"
    return BaseImage(
        reference=reference, python=chosen, notice=_notice(reference, release, chip, minor, published)
    )


def image_release(cann: str) -> str:
    """How the tags write a CANN version: 8.3.RC1.beta1 is `8.3.rc1`, 9.1.0.beta.1 is `9.1.0-beta.1`."""
    release = cann.lower()
    if "rc" in release:
        return re.sub(r"[.-]?beta\.?\d+$", "", release)
    return re.sub(r"[.-]?beta\.?(\d+)$", r"-beta.\1", release)


def _notice(reference: str, release: str, chip: str, minor: str, published: tuple[str, ...]) -> str:
    if minor in published:
        return ""
    if published:
        return (
            f"No image of CANN {release} for {chip} with Python {minor} is known to be published, only with "
            f"Python {', '.join(published)}. The Dockerfile uses {reference} "
            f"and installs Python {minor} with uv."
        )
    return (
        f"The image {reference} is not among those known to be published on {LISTED}; its name follows the "
        "rule for tags. Look it up in the registry, or give another image with --base-image."
    )


@cache
def _published() -> dict[tuple[str, str], tuple[str, ...]]:
    """CANN release and chip -> the Pythons of its images, oldest first."""
    pythons: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in _PUBLISHED.splitlines():
        release, chips, versions = line.split("|")
        pythons |= {(release.strip(), chip): tuple(versions.split()) for chip in chips.split()}
    return pythons
