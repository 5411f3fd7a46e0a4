"""What every process of verl loads:
`VERL_USE_EXTERNAL_MODULES=harness.convergence.trainer.verl_extensions.verl_plugin`.

It registers the rollouts with verl's registries, leaves the process's facts in a folder, and lets the
process's stacks be asked for. verl loads external modules at the end of `import verl`, before the modules
that hold its registries, so registering waits for their import. In-cell module.
"""

from __future__ import annotations

import faulthandler
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.convergence.trainer.trainer_environment import PROCESSES

Action = Callable[[Any], None]
STACK_SIGNAL = signal.SIGUSR2
# verl 0.9 looks for finished responses every 2 s; those of five tokens are there much sooner.
POLL_SECONDS = 0.05


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls an action with a module once that has been imported."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, its loader followed by the action."""
        del path, target
        if self._searching or fullname not in self._actions:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader, self._actions[fullname])
        return spec

    @staticmethod
    def _follow(loader: Any, action: Action) -> None:
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            action(module)

        loader.exec_module = execute_and_act


def register_rollouts(module: Any) -> None:
    """Into `verl.workers.rollout.base`."""
    registry = module._ROLLOUT_REGISTRY  # noqa: SLF001 - verl has no function for it
    registry[("hf", "sync")] = "harness.convergence.trainer.verl_extensions.sync_rollout.SyncRollout"
    registry[("hf", "async")] = "harness.convergence.trainer.verl_extensions.rollout_server.Adapter"


def register_replica(module: Any) -> None:
    """Into `verl.workers.rollout.replica`, where there is a registry (verl 0.7 and later)."""

    def load() -> Any:
        from harness.convergence.trainer.verl_extensions.rollout_server import Replica

        return Replica

    if hasattr(module, "RolloutReplicaRegistry"):
        module.RolloutReplicaRegistry.register("hf", load)


def poll_sooner(module: Any) -> None:
    """In `verl.trainer.ppo.v1.replay_buffer`, whose interval no setting reaches."""
    made = module.ReplayBuffer.__init__

    def make(self: Any, *values: Any, **named: Any) -> None:
        made(self, *values, **named)
        self.poll_interval = POLL_SECONDS

    module.ReplayBuffer.__init__ = make


ACTIONS: dict[str, Action] = {
    "verl.workers.rollout.base": register_rollouts,
    "verl.workers.rollout.replica": register_replica,
    "verl.trainer.ppo.v1.replay_buffer": poll_sooner,
}


def leave_facts(folder: Path) -> None:
    """Write this process's facts, and have its stacks written beside them on `STACK_SIGNAL`."""
    facts = {
        "pid": os.getpid(),
        "device_facts": json.loads(os.environ.get("NPU_MATRIX_DEVICE_FACTS", "null")),
        "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
    }
    folder.joinpath(f"{os.getpid()}.json").write_text(json.dumps(facts), encoding="utf-8")
    # Open for as long as the process lives: the handler writes to its descriptor.
    stream = folder.joinpath(f"{os.getpid()}.stacks").open("w", encoding="utf-8")
    faulthandler.register(STACK_SIGNAL, file=stream, all_threads=True)


def act(actions: dict[str, Action]) -> None:
    """Act on modules that are imported, and on those that will be."""
    for name, action in actions.items():
        if name in sys.modules:
            action(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(actions))


act(ACTIONS)
if os.environ.get(PROCESSES):
    leave_facts(Path(os.environ[PROCESSES]))
