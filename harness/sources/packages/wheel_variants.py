"""Wheel variants: wheels of one release for different hardware (PEP 817 and 825), and which one fits a host.

A variant wheel has a label at the end of its file name, for example `a3` in
`vllm_ascend-0.23.0-cp311-cp311-manylinux_2_34_aarch64-a3.whl`. The file `NAME-VERSION-variants.json` of the
index maps each label to properties such as `ascend :: npu_type :: a3`. The rules for choosing are those of
variantlib 0.2; the fields of the file differ between the drafts, and unknown ones are ignored.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from harness.errors import InputError, Location
from harness.sources.packages.lockfile import normal_name

#: The label of the variant without properties, which fits every host.
NULL = "null"
_LABEL = re.compile(r"[0-9a-z._]+")
_WORD = re.compile(r"[0-9a-z_.]+")
_WHEEL = re.compile(
    r"(?P<name>[^\s-]+)-(?P<version>[^\s-]+)(?:-(?P<build>\d[^\s-]*))?"
    r"-(?P<python>[^\s\d-][^\s-]*)-(?P<abi>[^\s-]+)-(?P<platform>[^\s-]+)"
    rf"(?:-(?P<label>{_LABEL.pattern}))?\.whl"
)
#: namespace -> feature -> values that a host supports, best first.
Supported = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, kw_only=True)
class WheelName:
    """The parts of a wheel's file name. label: of the variant, "" for an ordinary wheel."""

    package: str
    version: str
    python: str
    platform: str
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class VariantProperty:
    """One property of a variant, as `ascend :: npu_type :: a3`."""

    namespace: str
    feature: str
    value: str

    def __str__(self) -> str:
        return f"{self.namespace} :: {self.feature} :: {self.value}"


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The variants of a release: label -> properties. namespaces: those that are used, best first."""

    variants: Mapping[str, tuple[VariantProperty, ...]]
    namespaces: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class VariantWheel:
    """The wheel of a variant. sha256: "" if the index does not state it."""

    label: str
    address: str
    sha256: str = ""

    @property
    def name(self) -> str:
        """The file name on the index."""
        return unquote(self.address.rpartition("/")[2])

    @property
    def plain_name(self) -> str:
        """The file name without the label. pip and uv refuse to install a file whose name has one."""
        return f"{self.name.removesuffix('.whl').removesuffix(f'-{self.label}')}.whl"

    @property
    def installation(self) -> tuple[str, ...]:
        """Commands that install it into the active environment, by a file in the current folder."""
        line = shlex.quote(f"{self.sha256}  {self.plain_name}")
        return (
            f"curl -fLo {shlex.quote(self.plain_name)} {shlex.quote(self.address)}",
            *([f"echo {line} | sha256sum -c"] if self.sha256 else []),
            f"python3 -m pip install --no-deps {shlex.quote(f'./{self.plain_name}')}",
        )

    def is_for(self, arch: str) -> bool:
        """Whether it can be used on this machine architecture, for example aarch64."""
        parts = parse_wheel_name(self.name)
        return parts is not None and parts.platform.endswith((f"_{arch}", "any"))


def parse_wheel_name(file: str) -> WheelName | None:
    """The parts of a file name; None if it is not the name of a wheel."""
    match = _WHEEL.fullmatch(file)
    if match is None:
        return None
    return WheelName(
        package=normal_name(match["name"]),
        version=match["version"],
        python=match["python"],
        platform=match["platform"],
        label=match["label"] or "",
    )


def read_variants(text: str, where: Location) -> Variants:
    """The variants in a `variants.json` of an index, or a `variant.json` of a wheel.

    InputError if the file is not one, or if a property has no valid name.
    """
    try:
        data = json.loads(text)
        priorities = data["default-priorities"]["namespace"]
        variants = {
            _valid(_LABEL, label): tuple(
                VariantProperty(
                    namespace=_valid(_WORD, namespace),
                    feature=_valid(_WORD, feature),
                    value=_valid(_WORD, value),
                )
                for namespace, features in properties.items()
                for feature, values in features.items()
                for value in values
            )
            for label, properties in data["variants"].items()
        }
        namespaces = tuple(_valid(_WORD, name) for name in priorities)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError("this file does not describe wheel variants", where=where, why=str(error)) from error
    for label, found in variants.items():
        if bool(found) == (label == NULL):
            what = f"the variant {label!r} has {'properties' if found else 'no properties'}"
            raise InputError(what, where=where, why=f"only {NULL!r} has none")
        for one in found:
            if one.namespace not in namespaces:
                raise InputError(f"no priority is given for the namespace {one.namespace}", where=where)
    return Variants(variants=variants, namespaces=namespaces)


def _valid(pattern: re.Pattern[str], word: object) -> str:
    if not isinstance(word, str) or not pattern.fullmatch(word):
        raise ValueError(f"{word!r} is not a valid name")
    return word


def fitting_variants(variants: Variants, supported: Supported) -> tuple[str, ...]:
    """The labels that fit a host, best first.

    A variant fits if the host supports one value of each of its features. Of two, the one wins whose first
    difference, in the order of namespaces, features and values, is the more preferred value.
    """
    features = [
        (namespace, feature) for namespace in variants.namespaces for feature in supported.get(namespace, {})
    ]

    def rank(label: str) -> tuple[list[int], str]:
        places = dict.fromkeys(features, sys.maxsize)
        for one in variants.variants[label]:
            values = list(supported[one.namespace][one.feature])
            if one.value in values:
                key = (one.namespace, one.feature)
                places[key] = min(places[key], values.index(one.value))
        return list(places.values()), label

    return tuple(
        sorted((label for label in variants.variants if not misfits(variants, label, supported)), key=rank)
    )


def misfits(variants: Variants, label: str, supported: Supported) -> tuple[str, ...]:
    """Why a variant does not fit: each feature of which the host supports no value."""
    values: dict[tuple[str, str], list[str]] = {}
    for one in variants.variants[label]:
        values.setdefault((one.namespace, one.feature), []).append(one.value)
    return tuple(
        f"{namespace} :: {feature} :: {' or '.join(wanted)}"
        for (namespace, feature), wanted in values.items()
        if not set(wanted) & set(supported.get(namespace, {}).get(feature, ()))
    )


def abi_values(versions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The values of the namespace `abi_dependency` for packages of a stack: package -> 2, 2.10 and 2.10.0."""
    found = {}
    for package, version in versions.items():
        numbers = version.partition("+")[0].split(".")[:3]
        if all(number.isdigit() for number in numbers):
            found[normal_name(package).replace("-", "_")] = tuple(
                ".".join(numbers[:length]) for length in range(len(numbers), 0, -1)
            )
    return found


def files_of(label: str, files: Iterable[str], version: str, python: str) -> tuple[str, ...]:
    """The files of a variant of a release for a Python version such as 3.11."""
    tag = f"cp{python.replace('.', '')}"
    return tuple(
        file
        for file in files
        if (wheel := parse_wheel_name(file))
        and (wheel.label, wheel.version) == (label, version)
        and (tag in wheel.python.split(".") or wheel.python.startswith("py3"))
    )
