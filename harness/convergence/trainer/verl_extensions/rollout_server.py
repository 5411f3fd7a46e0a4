"""The rollout of verl 0.7 and later, in server mode: one Ray actor that generates on the device.

verl lets a replica start servers, sends each prompt to a server as a separate request, and passes new weights
to the adapter inside each training worker. In-cell module.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import ray
from torch import Tensor
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from harness.convergence.trainer.trainer_environment import SEED
from harness.convergence.trainer.verl_extensions.sampler import Noise, sample

CARDS = "ASCEND_RT_VISIBLE_DEVICES"
# The largest number of responses in a step.
MOST_REQUESTS = 1024
# The requests of a step arrive one by one. All have arrived when there is no new one for this long.
SETTLED_SECONDS = 0.02
# From 0.7.1 on, verl reads from each response the step whose weights generated it. Older versions do not, and
# their workers send the weights when the replica wakes them up.
HAS_STEP = "extra_fields" in TokenOutput.model_fields


def server_name(replica_rank: int) -> str:
    """The Ray name of a replica's server, by which the adapters of its workers find it."""
    return f"npu_matrix_server_{replica_rank}"


class Server:
    """Generates responses; all requests that have arrived form a batch."""

    def __init__(self, path: str, response_tokens: int, replica_rank: int) -> None:
        from transformers import AutoModelForCausalLM
        from verl.utils.device import get_device_name

        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
        self.model = model.float().to(get_device_name()).eval()
        self.response_tokens = response_tokens
        self.noise = Noise(int(os.environ.get(SEED, "0")) + replica_rank)
        self.step: int | None = None
        self._requests: list[tuple[list[int], float, asyncio.Future[TokenOutput]]] = []
        self._serving: asyncio.Task[None] | None = None

    async def set_weights(self, weights: dict[str, Tensor], step: int | None) -> None:
        """Load the policy's weights. Raises ValueError for a name that the model does not have."""
        unknown = self.model.load_state_dict(weights, strict=False).unexpected_keys
        if unknown:
            raise ValueError(f"the policy has weights that its copy lacks: {', '.join(unknown[:3])}")
        self.step = step
        self.noise.next_step()

    async def load_weight(self, name: str, weight: Tensor, *, begins: bool) -> None:
        """Load one weight. `begins`: it is the first of a weight sync, so a new step begins."""
        unknown = self.model.load_state_dict({name: weight}, strict=False).unexpected_keys
        if unknown:
            raise ValueError(f"the policy has a weight that its copy lacks: {name}")
        if begins:
            self.noise.next_step()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_others: Any
    ) -> TokenOutput:
        """The response to one prompt, with its log-probabilities."""
        del request_id
        response: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self._requests.append((list(prompt_ids), float(sampling_params.get("temperature", 1.0)), response))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.ensure_future(self._serve())
        return await response

    async def _serve(self) -> None:
        while self._requests:
            arrived = -1
            while arrived != len(self._requests):
                arrived = len(self._requests)
                await asyncio.sleep(SETTLED_SECONDS)
            batch, self._requests = self._requests, []
            try:
                outputs = self._outputs([prompt for prompt, _, _ in batch], batch[0][1])
            except Exception as error:  # noqa: BLE001 - the callers of `generate` get it
                for _, _, response in batch:
                    response.set_exception(error)
                continue
            for (_, _, response), output in zip(batch, outputs, strict=True):
                if not response.done():
                    response.set_result(output)

    def _outputs(self, prompts: list[list[int]], temperature: float) -> list[TokenOutput]:
        config = self.model.config
        end, pad = int(config.eos_token_id), int(config.pad_token_id)
        noise = self.noise.draw(prompts, self.response_tokens, config.vocab_size)
        sampled = sample(self.model, prompts, noise, end=end, pad=pad, temperature=temperature)
        outputs = []
        for tokens, log_probs in zip(sampled.tokens.tolist(), sampled.log_probs.tolist(), strict=True):
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            outputs.append(
                TokenOutput(
                    token_ids=tokens[:length],
                    log_probs=log_probs[:length],
                    stop_reason="completed",
                    **({"extra_fields": {"global_steps": self.step}} if HAS_STEP else {}),
                )
            )
        return outputs

    async def nothing(self, *_values: Any, **_named: Any) -> None:
        """Do nothing: this server has no caches, profilers or offloaded weights."""

    wake_up = sleep = abort_all_requests = resume_generation = nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    start_profile = stop_profile = set_global_steps = nothing


class Replica(RolloutReplica):  # type: ignore[misc]
    """Registered as "hf" with verl's RolloutReplicaRegistry."""

    def get_ray_class_with_init_args(self) -> Any:
        """The Ray class of workers for servers on separate cards (verl 0.7.1 and later)."""
        return super().get_ray_class_with_init_args()

    async def wake_up(self) -> None:
        """Wake the workers up before a step is sampled, where verl syncs weights then."""
        await self._wake_or_sleep("wake_up")

    async def sleep(self) -> None:
        """Let the workers sleep after a step was sampled, where verl syncs weights at wake-up."""
        await self._wake_or_sleep("sleep")

    async def _wake_or_sleep(self, method: str) -> None:
        if not HAS_STEP:
            await asyncio.gather(*(getattr(worker, method).remote() for worker in self.workers))

    async def launch_servers(self) -> None:
        """Start the server. It shares the worker's device and requests none from Ray."""
        path = self.model_config.get("local_path", None) or self.model_config["path"]
        cards = await self.workers[0].__ray_call__.remote(lambda _worker: os.environ.get(CARDS))
        options = {
            "name": server_name(self.replica_rank),
            "max_concurrency": MOST_REQUESTS,
            "num_cpus": 0,
            "runtime_env": {"env_vars": {} if cards is None else {CARDS: cards}},
        }
        server = ray.remote(Server).options(**options)
        handle = server.remote(path, self.config.response_length, self.replica_rank)
        await handle.clear_kv_cache.remote()
        self.servers = [handle]
        self._server_handle = handle
        self._server_address = server_name(self.replica_rank)


class Adapter(BaseRollout):  # type: ignore[misc]
    """Registered as ("hf", "async"): sends a worker's weights to its server."""

    # verl reads it when it loads weights with adapters (LoRA).
    sleep_level = 2

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any = None, replica_rank: int = -1, **_others: Any
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = replica_rank if replica_rank >= 0 else int(os.environ.get("RANK", "0"))
        self.is_leader_rank = True
        self._server: Any = None
        # verl collects garbage at each weight sync; frozen objects of imported modules are not scanned.
        gc.collect()
        gc.freeze()

    async def resume(self, tags: list[str]) -> None:
        """Nothing is offloaded."""

    async def release(self) -> None:
        """Nothing is offloaded."""

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_others: Any) -> None:
        """Send all weights; `weights` is a plain or an asynchronous iterator of (name, tensor)."""
        if hasattr(weights, "__aiter__"):
            copies = {name: tensor.detach().cpu().clone() async for name, tensor in weights}
        else:
            copies = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        await self._own_server().set_weights.remote(copies, global_steps)

    def _own_server(self) -> Any:
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server


class StreamedAdapter(Adapter):
    """Registered by `one_step_rollout`: receives weights one by one.

    verl's one-step-off-policy recipe calls `load_weights` of vLLM's model; `inference_engine` makes this
    object the model.
    """

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._first = ""
        self.inference_engine = SimpleNamespace(
            worker=SimpleNamespace(model_runner=SimpleNamespace(model=self))
        )

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Send weights to the server. Each weight sync begins with the name that came first."""
        for name, tensor in weights:
            self._first = self._first or name
            begins = name == self._first
            ray.get(self._own_server().load_weight.remote(name, tensor.detach().cpu(), begins=begins))
