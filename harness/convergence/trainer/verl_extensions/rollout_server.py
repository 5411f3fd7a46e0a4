"""The rollout of verl 0.7 and later, in server mode: one Ray actor that answers requests on the device.

verl asks a replica for servers, sends every prompt to a server as a request of its own, and hands the adapter
inside each training worker the new weights. In-cell module.
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
# As many as a step may have responses.
MOST_REQUESTS = 1024
# Requests of one step come one by one; this long without a new one means that they are all there.
SETTLED_SECONDS = 0.02
# verl before 0.7.1 asks no answer which step's weights it was sampled with, and its workers hand weights over
# when their engine's server wakes them.
TELLS_STEP = "extra_fields" in TokenOutput.model_fields


def server_name(replica_rank: int) -> str:
    """Name under which the adapter of a worker finds its server in Ray."""
    return f"npu_matrix_server_{replica_rank}"


class Server:
    """Answers requests in batches of what has arrived."""

    def __init__(self, path: str, response_tokens: int, replica_rank: int) -> None:
        from transformers import AutoModelForCausalLM
        from verl.utils.device import get_device_name

        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
        self.model = model.float().to(get_device_name()).eval()
        self.response_tokens = response_tokens
        self.noise = Noise(int(os.environ.get(SEED, "0")) + replica_rank)
        self.step: int | None = None
        self._waiting: list[tuple[list[int], float, asyncio.Future[TokenOutput]]] = []
        self._answering: asyncio.Task[None] | None = None

    async def set_weights(self, weights: dict[str, Tensor], step: int | None) -> None:
        """Take the policy's weights; a name the model does not know is an error."""
        wrong = self.model.load_state_dict(weights, strict=False).unexpected_keys
        if wrong:
            raise ValueError(f"the policy has weights that its copy lacks: {', '.join(wrong[:3])}")
        self.step = step
        self.noise.next_step()

    async def load_weight(self, name: str, weight: Tensor, *, begins: bool) -> None:
        """Take one weight; `begins`: it is the first of a set, so what is sampled next is a new step's."""
        wrong = self.model.load_state_dict({name: weight}, strict=False).unexpected_keys
        if wrong:
            raise ValueError(f"the policy has a weight that its copy lacks: {name}")
        if begins:
            self.noise.next_step()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_others: Any
    ) -> TokenOutput:
        """The response to one prompt, with its log-probabilities."""
        del request_id
        answer: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(prompt_ids), float(sampling_params.get("temperature", 1.0)), answer))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.ensure_future(self._answer())
        return await answer

    async def _answer(self) -> None:
        while self._waiting:
            arrived = -1
            while arrived != len(self._waiting):
                arrived = len(self._waiting)
                await asyncio.sleep(SETTLED_SECONDS)
            batch, self._waiting = self._waiting, []
            try:
                outputs = self._outputs([prompt for prompt, _, _ in batch], batch[0][1])
            except Exception as error:  # noqa: BLE001 - whoever asked gets it
                for _, _, answer in batch:
                    answer.set_exception(error)
                continue
            for (_, _, answer), output in zip(batch, outputs, strict=True):
                if not answer.done():
                    answer.set_result(output)

    def _outputs(self, prompts: list[list[int]], temperature: float) -> list[TokenOutput]:
        config = self.model.config
        end, pad = int(config.eos_token_id), int(config.pad_token_id)
        noise = self.noise.draw(prompts, self.response_tokens, config.vocab_size)
        found = sample(self.model, prompts, noise, end=end, pad=pad, temperature=temperature)
        outputs = []
        for tokens, log_probs in zip(found.tokens.tolist(), found.log_probs.tolist(), strict=True):
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            outputs.append(
                TokenOutput(
                    token_ids=tokens[:length],
                    log_probs=log_probs[:length],
                    stop_reason="completed",
                    **({"extra_fields": {"global_steps": self.step}} if TELLS_STEP else {}),
                )
            )
        return outputs

    async def nothing(self, *_values: Any, **_named: Any) -> None:
        """What verl asks of a server that has caches, profilers or offloaded weights; this one has none."""

    wake_up = sleep = abort_all_requests = resume_generation = nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    start_profile = stop_profile = set_global_steps = nothing


class Replica(RolloutReplica):  # type: ignore[misc]
    """Registered as "hf" with verl's RolloutReplicaRegistry."""

    def get_ray_class_with_init_args(self) -> Any:
        """The workers of servers on cards of their own, which verl has from 0.7.1 on."""
        return super().get_ray_class_with_init_args()

    async def wake_up(self) -> None:
        """Before a step is sampled."""
        await self._have_workers("wake_up")

    async def sleep(self) -> None:
        """After it was."""
        await self._have_workers("sleep")

    async def _have_workers(self, method: str) -> None:
        if not TELLS_STEP:
            await asyncio.gather(*(getattr(worker, method).remote() for worker in self.workers))

    async def launch_servers(self) -> None:
        """Start the server. It shares the worker's device, so Ray is asked for none."""
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
    """Registered as ("hf", "async"): hands a worker's weights to its server."""

    # verl asks for it where weights are loaded with adapters (LoRA).
    sleep_level = 2

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any = None, replica_rank: int = -1, **_others: Any
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = replica_rank if replica_rank >= 0 else int(os.environ.get("RANK", "0"))
        self.is_leader_rank = True
        self._server: Any = None
        # verl collects garbage when it hands over weights, among all the objects that imports left.
        gc.collect()
        gc.freeze()

    async def resume(self, tags: list[str]) -> None:
        """Nothing is offloaded."""

    async def release(self) -> None:
        """Nothing is offloaded."""

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_others: Any) -> None:
        """Send all weights; `weights` is a plain or an asynchronous iterator of (name, tensor)."""
        if hasattr(weights, "__aiter__"):
            found = {name: tensor.detach().cpu().clone() async for name, tensor in weights}
        else:
            found = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        await self._its_server().set_weights.remote(found, global_steps)

    def _its_server(self) -> Any:
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server


class StreamedAdapter(Adapter):
    """Registered by `one_step`: takes weights one by one, where one-step-off-policy training looks for vLLM's
    model."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._first = ""
        self.inference_engine = SimpleNamespace(
            worker=SimpleNamespace(model_runner=SimpleNamespace(model=self))
        )

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Pass weights on; the name that came first begins a new set whenever it comes."""
        for name, tensor in weights:
            self._first = self._first or name
            begins = name == self._first
            ray.get(self._its_server().load_weight.remote(name, tensor.detach().cpu(), begins=begins))
