"""The disk space that the default profile needs, and the resources that this host offers to Ray."""

from __future__ import annotations

import platform

from harness.builds.cell.disk_space import free_bytes
from harness.devices.host.host_findings import DiskSpace
from harness.devices.host.host_inspection import HostReport
from harness.settings import Settings

#: Two environments of 1.7 GiB each, their downloads, and build files; measured with the default profile.
NEEDED_BYTES = 8 * 2**30


#: Two images with 3.4 GB in total, and two copies of the largest layer (0.9 GB) while it is stored.
NEEDED_FOR_IMAGES = 5 * 2**30


def disk_requirements(settings: Settings) -> DiskSpace:
    """The free disk space of this host and what the default profile needs."""
    return DiskSpace(
        # Environments are in the cache, outcomes in the state folder; these may be two disks.
        free=min(free_bytes(folder) for folder in (settings.cache, settings.path("state"))),
        needed=NEEDED_BYTES,
        free_on=free_bytes,
        images=NEEDED_FOR_IMAGES,
        engine=settings["engine"],
    )


def ray_resources(host: HostReport) -> dict[str, float]:
    """Resources for `ray start` (see `harness.plan.tasks.demand`). Ray counts CPUs itself."""
    found: dict[str, float] = {f"arch:{platform.machine()}": 1}
    if host.usable_chips:
        found["NPU"] = len(host.usable_chips)
        found |= {f"soc:{host.soc}": 1} if host.soc else {}
        found |= {f"cann:{host.cann}": 1} if host.cann else {}
    return found
