"""The versions that a Dockerfile pins: of its CANN image, and of the packages that it installs or clones.

Only text is read. Variables are replaced by the defaults of the ARG and ENV instructions before their use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from harness.builds.lock.base_image import CHIPS
from harness.workspace.pins.install_commands import NamedVersion, cann_version, command_pins

_NAME = re.compile(r"(?:Dockerfile|Containerfile)(?:[.\w+-]*)?|[\w.+-]+\.(?:Dockerfile|dockerfile)")
_INSTRUCTION = re.compile(r"\s*(ARG|ENV)\s+([A-Za-z_]\w*)[=\s]\s*(\"[^\"]*\"|'[^']*'|\S*)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
#: A CANN image: `quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11`.
_CANN_IMAGE = re.compile(
    r"\s*FROM\s+(?:--\S+\s+)*\S*/cann:(?P<cann>[0-9][\w.]*?(?:-beta\.\d+)?)-(?P<chip>[0-9a-z]+)-[a-z]+[\d.]+-py(?P<python>3\.\d+)",
    re.IGNORECASE,
)
#: `ARG VLLM_TAG=v0.18.0`, `ENV TORCH_NPU_VERSION=2.7.1`.
_VERSION_VARIABLE = re.compile(r"(\w+?)_(?:TAG|VERSION|BRANCH|REF)", re.IGNORECASE)
_VERSION = re.compile(r"(?:core_)?v?([0-9][\w.+!]*)")


def is_dockerfile(path: PurePosixPath) -> bool:
    """Whether a file with this name is a Dockerfile."""
    return _NAME.fullmatch(path.name) is not None


def dockerfile_lines(text: str) -> Iterator[tuple[str, int]]:
    """Each line without its comment, with its variables replaced, and its number.

    A variable without a default stays as it is.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        replaced = _VARIABLE.sub(lambda match: _value(match, values), line)
        found = _INSTRUCTION.match(replaced)
        if found:
            values[found[2]] = found[3].strip("\"'")
        yield replaced, number


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    value = values.get(match[1] or match[3], "") or match[2]
    return value or match[0]


def dockerfile_pins(text: str) -> Iterator[NamedVersion]:
    """The name of each package or axis with its version and line. `pip install NAME==VERSION` is not read."""
    families = {chip: family for family, chip in CHIPS.items()}
    for line, number in dockerfile_lines(text):
        image = _CANN_IMAGE.match(line)
        if image:
            yield "cann", cann_version(image["cann"]), number
            yield "python", image["python"], number
            if image["chip"].lower() in families:
                yield "soc", families[image["chip"].lower()], number
        found = _INSTRUCTION.match(line)
        named = _VERSION_VARIABLE.fullmatch(found[2]) if found else None
        version = _VERSION.fullmatch(found[3].strip("\"'")) if found else None
        if named and version:
            yield named[1], version[1], number
    yield from command_pins(dockerfile_lines(text))
