"""Builds the configuration dataclasses of the installed verl, whose fields differ between releases.

In-cell module; verl is imported on use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

from harness.errors import NothingSelectedError

CONFIGURATIONS = "verl.workers.config"
LEARNING_RATE = 1e-6
"""No check steps with this optimizer configuration: some commits refuse one without a learning rate."""


def verl_configuration(name: str, settings: Mapping[str, object]) -> Any:
    """The dataclass `name` of verl's configuration with those of `settings` that this verl has.

    NothingSelectedError if verl refuses them: then the check cannot test it, which is no defect of verl.
    """
    classes: Any = import_module(CONFIGURATIONS)
    configuration = getattr(classes, name)
    fields = configuration.__dataclass_fields__
    given = dict(settings)
    try:
        if "optim" in fields:
            optimizer = getattr(classes, "FSDPOptimizerConfig", classes.OptimizerConfig)
            given.setdefault("optim", optimizer(lr=LEARNING_RATE))
        return configuration(**{field: value for field, value in given.items() if field in fields})
    except Exception as error:
        raise NothingSelectedError(
            f"the check cannot build {name} of verl {version('verl')}",
            why=f"{CONFIGURATIONS}.{name} raised {type(error).__name__}: {' '.join(str(error).split())}",
            fix="this commit of verl needs settings that the check does not set; no statement about its "
            "losses follows from this",
        ) from error
