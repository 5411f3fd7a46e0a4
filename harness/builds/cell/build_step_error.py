"""Why an environment could not be built."""

from __future__ import annotations

from harness.cell_program.built_environment import HostLack


class BuildStepError(Exception):
    """A step of the build failed in a way that says something about the cell, not about this host."""

    def __init__(self, step: str, reason: str, *, tail: str = "") -> None:
        super().__init__(reason)
        self.step, self.reason, self.tail = step, reason, tail


class HostLacksError(BuildStepError):
    """This host lacks something that the build needs, which says nothing about the cell."""

    def __init__(self, lacks: HostLack, reason: str, *, remedy: str) -> None:
        super().__init__("interpreter" if lacks.kind == "python" else "engine", reason)
        self.lacks, self.remedy = lacks, remedy
