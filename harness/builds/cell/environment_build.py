"""The parts that both kinds of builds share: the state of a build, the simulated runtime, the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.builds.cell.build_step_error import BuildStepError, HostLacksError
from harness.builds.cell.environment_spec import EnvironmentSpec, environment_spec
from harness.cell_program.built_environment import (
    CellDevice,
    CellImage,
    EnvironmentBuilt,
    EnvironmentLocation,
    EnvironmentNotBuilt,
    EnvironmentProbe,
    VerifiedFiles,
)
from harness.check import TaskContext
from harness.devices.sim.runtime_build.cann_toolkit import write_toolkit
from harness.devices.sim.runtime_build.runtime_library import build_runtime
from harness.devices.sim.start.sim_environment import DEFAULT_CANN
from harness.errors import InputError
from harness.evidence import evidence_of
from harness.outcome import Evidence
from harness.sources.packages.fetch_failure import machine_failure
from harness.sources.packages.lockfile import normal_name

TAIL_CHARACTERS = 4000


@dataclass(kw_only=True)
class EnvironmentBuild:
    """The state of a build, from which its measurements are made at the end.

    spec: None until it is known. runtime: folder of the simulated CANN runtime, "" until it is built.
    seconds: duration of each step.
    """

    device: CellDevice
    spec: EnvironmentSpec | None = None
    runtime: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    def measure(
        self, ctx: TaskContext, build: Callable[[EnvironmentSpec], EnvironmentBuilt]
    ) -> EnvironmentBuilt | EnvironmentNotBuilt:
        """Determine the spec and call `build`; a step of the build that fails is a measurement too."""
        try:
            self.spec = environment_spec(ctx)
            return build(self.spec)
        except BuildStepError as error:
            ctx.log(f"{error.step}: {error.reason}")
            return self._failed(error)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the duration of a step."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 3)

    def finished(
        self,
        spec: EnvironmentSpec,
        location: EnvironmentLocation,
        probe: EnvironmentProbe,
        *,
        site_packages: Path | str,
        digest: str,
        reused: bool,
        image: CellImage | None = None,
        libraries: VerifiedFiles | None = None,
        toolkit: Mapping[str, str] | None = None,
    ) -> EnvironmentBuilt:
        """The measurements of a build that succeeded."""
        return EnvironmentBuilt(
            requested_device=location.requested_device,
            python=location.python,
            prefix=location.prefix,
            runtime=location.runtime,
            container=image,
            files=location.files,
            site_packages=str(site_packages),
            digest=digest,
            reused=reused,
            expected=spec.expected,
            left_out=spec.omitted,
            built_here=spec.built,
            from_repositories=tuple(normal_name(one.package) for one in spec.sources),
            patched=spec.patched_digests,
            probe=probe,
            seconds=self.seconds,
            libraries=libraries,
            toolkit=toolkit or {},
        )

    def _failed(self, error: BuildStepError) -> EnvironmentNotBuilt:
        """The measurements of a build that failed; InfrastructureError when this host caused the failure."""
        if failure := machine_failure(error.tail):
            raise failure from error
        return EnvironmentNotBuilt(
            requested_device=self.device,
            step=error.step,
            reason=error.reason,
            tail=error.tail[-TAIL_CHARACTERS:],
            unsupported=isinstance(error, HostLacksError),
            lacks=error.lacks if isinstance(error, HostLacksError) else None,
            remedy=error.remedy if isinstance(error, HostLacksError) else "",
            expected=self.spec.expected if self.spec else {},
            left_out=self.spec.omitted if self.spec else {},
            built_here=self.spec.built if self.spec else (),
            seconds=self.seconds,
        )


def make_runtime(device: CellDevice, site_packages: Path, folder: Path) -> Path:
    """Build the simulated CANN runtime for the torch_npu in `site_packages`, below `folder`.

    BuildStepError when this torch_npu cannot run on it.
    """
    try:
        runtime = build_runtime(site_packages, folder)
        write_toolkit(runtime, device.cann or DEFAULT_CANN)
        return runtime
    except InputError as error:
        raise BuildStepError(
            "runtime", "The simulated runtime cannot be built for this torch_npu.", tail=str(error)
        ) from error


def environment_evidence(measurements: EnvironmentBuilt | EnvironmentNotBuilt) -> Evidence:
    """The evidence of these measurements, according to the device that was probed."""
    if isinstance(measurements, EnvironmentNotBuilt):
        return Evidence.STATIC
    return evidence_of(measurements.probe.device)
