"""The external module that every process of verl imports, by `VERL_USE_EXTERNAL_MODULES`.

It adds our rollouts to verl's registries, writes facts about the process into a folder, and installs a signal
handler that writes the process's stacks. verl imports external modules at the end of `import verl`, before
the modules with its registries, so each registration runs after the import of its module. In-cell module.
"""

from __future__ import annotations

import faulthandler
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.convergence.trainer.trainer_environment import PROCESSES, STACK_SIGNAL

Action = Callable[[Any], None]
# verl 0.9 polls for finished responses every 2 s; responses of five tokens are finished much earlier.
POLL_SECONDS = 0.05


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after the module was imported."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that calls the function after executing the module."""
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
    """Add our rollouts to the registry in `verl.workers.rollout.base`."""
    registry = module._ROLLOUT_REGISTRY  # noqa: SLF001 - verl has no function for it
    registry[("hf", "sync")] = "harness.convergence.trainer.verl_extensions.sync_rollout.SyncRollout"
    registry[("hf", "async")] = "harness.convergence.trainer.verl_extensions.rollout_server.Adapter"


def register_replica(module: Any) -> None:
    """Add our replica to the registry in `verl.workers.rollout.replica` (verl 0.7 and later)."""

    def load() -> Any:
        from harness.convergence.trainer.verl_extensions.rollout_server import Replica

        return Replica

    if hasattr(module, "RolloutReplicaRegistry"):
        module.RolloutReplicaRegistry.register("hf", load)


def poll_sooner(module: Any) -> None:
    """Shorten the poll interval of `verl.trainer.ppo.v1.replay_buffer`, for which verl has no setting."""
    original = module.ReplayBuffer.__init__

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807 - verl's method
        original(self, *values, **named)
        self.poll_interval = POLL_SECONDS

    module.ReplayBuffer.__init__ = __init__


ACTIONS: dict[str, Action] = {
    "verl.workers.rollout.base": register_rollouts,
    "verl.workers.rollout.replica": register_replica,
    "verl.trainer.ppo.v1.replay_buffer": poll_sooner,
}


def write_facts(folder: Path) -> None:
    """Write facts about this process, and install a handler that writes its stacks on `STACK_SIGNAL`."""
    facts = {
        "pid": os.getpid(),
        "device_facts": json.loads(os.environ.get("NPU_MATRIX_DEVICE_FACTS", "null")),
        "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
    }
    folder.joinpath(f"{os.getpid()}.json").write_text(json.dumps(facts), encoding="utf-8")
    # The handler writes to the file's descriptor, so the file stays open.
    stream = folder.joinpath(f"{os.getpid()}.stacks").open("w", encoding="utf-8")
    faulthandler.register(STACK_SIGNAL, file=stream, all_threads=True)


def act(actions: dict[str, Action]) -> None:
    """Call each function with its module: now if the module is imported, otherwise after its import."""
    for name, action in actions.items():
        if name in sys.modules:
            action(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(actions))


act(ACTIONS)
if os.environ.get(PROCESSES):
    write_facts(Path(os.environ[PROCESSES]))
