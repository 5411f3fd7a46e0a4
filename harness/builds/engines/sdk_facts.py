"""What Docker's API answers, in this room's words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from harness.builds.engines.engine import ARCHITECTURES, Image, Thing, layer_image
from harness.builds.upkeep.labels import KEY

# Podman gives what was imported or built here a digest too, which nobody else could fetch it by.
OF_NO_REGISTRY = "localhost/"


def image_of(facts: Mapping[str, Any]) -> Image:
    """Of `inspect_image`."""
    return Image(
        id=_full_id(facts["Id"]),
        arch=ARCHITECTURES.get(facts["Architecture"], facts["Architecture"]),
        bytes=int(facts.get("Size") or 0),
        labels=(facts.get("Config") or {}).get("Labels") or {},
        digests=tuple(one for one in facts.get("RepoDigests") or () if not one.startswith(OF_NO_REGISTRY)),
    )


def _full_id(identity: str) -> str:
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def container_of(facts: Mapping[str, Any]) -> Thing:
    """Of `containers`."""
    return Thing(
        kind="container",
        id=facts["Id"],
        name=(facts.get("Names") or [""])[0].lstrip("/"),
        labels=facts.get("Labels") or {},
        created=float(facts["Created"]),
        running=facts.get("State") == "running",
    )


def stored_of(facts: Mapping[str, Any]) -> Thing:
    """An image, of `images`."""
    labels = facts.get("Labels") or {}
    return Thing(
        kind="image",
        id=_full_id(facts["Id"]),
        # A layer's image is named by its key; without its name it is gone for us.
        name=layer_image(labels[KEY]) if KEY in labels else "",
        labels=labels,
        created=float(facts["Created"]),
        bytes=int(facts.get("Size") or 0),
    )


def network_of(facts: Mapping[str, Any]) -> Thing:
    """Of `networks`."""
    try:
        created = datetime.fromisoformat(facts["Created"][:19]).timestamp()
    except (KeyError, ValueError):
        created = 0.0
    return Thing(
        kind="network",
        id=facts["Id"],
        name=facts.get("Name", ""),
        labels=facts.get("Labels") or {},
        created=created,
    )
