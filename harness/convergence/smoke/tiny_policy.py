"""A tiny recurrent policy, written with plain tensor operations that all run on the device under test.

Embedding -> hand-written GRU cell (linear, sigmoid, tanh) -> linear head. An operation of the simulated
device takes 15 to 40 microseconds, so everything that does not depend on the state is computed for all
positions at once. In-cell module.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from harness.convergence.smoke import repeat_task

# torch.nn's own bounds: GRU weights U(-1/sqrt(h), 1/sqrt(h)), embeddings N(0, 1).
_EMBEDDINGS = {
    "digit": repeat_task.DIGITS,
    "count": repeat_task.MAX_COUNT + 1,
    "token": repeat_task.VOCABULARY + 1,
}


@dataclass(frozen=True, kw_only=True)
class PolicySample:
    """The responses of a step: token ids and their log-probabilities, both (rows, RESPONSE_LENGTH)."""

    tokens: Tensor
    log_probs: Tensor


class Policy:
    """A policy with float32 weights on `device`; their initial values depend on `seed` only."""

    def __init__(self, seed: int, hidden: int, device: torch.device | str) -> None:
        draw = repeat_task.initial_weights(seed)
        bound = hidden**-0.5
        shapes: dict[str, tuple[int, ...]] = {
            "input": (3 * hidden, hidden),
            "input_bias": (3 * hidden,),
            "state": (3 * hidden, hidden),
            "state_bias": (3 * hidden,),
            "head": (repeat_task.VOCABULARY, hidden),
            "head_bias": (repeat_task.VOCABULARY,),
        }
        host: dict[str, np.ndarray] = {
            name: draw.standard_normal((entries, hidden)) for name, entries in _EMBEDDINGS.items()
        }
        host.update({name: draw.uniform(-bound, bound, shape) for name, shape in shapes.items()})
        self.hidden = hidden
        # Relative error that is added to the logits to imitate another arithmetic; 0 adds none.
        self.logit_noise = 0.0
        self._noise = torch.Generator().manual_seed(seed)
        self.weights: dict[str, Tensor] = {
            name: torch.tensor(value, dtype=torch.float32).to(device).requires_grad_()
            for name, value in host.items()
        }

    def copy(self) -> Policy:
        """A policy with a detached copy of the weights."""
        twin = object.__new__(Policy)
        twin.hidden = self.hidden
        twin.logit_noise = self.logit_noise
        twin._noise = self._noise
        twin.weights = {name: value.detach().clone() for name, value in self.weights.items()}
        return twin

    def _first_state(self, digit: Tensor, count: Tensor) -> Tensor:
        return torch.tanh(
            F.embedding(digit, self.weights["digit"]) + F.embedding(count, self.weights["count"])
        )

    def _input_gates(self, tokens: Tensor) -> Tensor:
        embedded = F.embedding(tokens, self.weights["token"])
        return F.linear(embedded, self.weights["input"], self.weights["input_bias"])

    def _cell(self, gates: Tensor, state: Tensor) -> Tensor:
        """The next state (rows, hidden), as in torch.nn.GRU. gates: of the input, (rows, 3 * hidden)."""
        hidden = self.hidden
        recurrent = F.linear(state, self.weights["state"], self.weights["state_bias"])
        both = torch.sigmoid(gates[:, : 2 * hidden] + recurrent[:, : 2 * hidden])
        new = torch.tanh(gates[:, 2 * hidden :] + both[:, :hidden] * recurrent[:, 2 * hidden :])
        return new + both[:, hidden:] * (state - new)

    def _head(self, states: Tensor) -> Tensor:
        logits = F.linear(states, self.weights["head"], self.weights["head_bias"])
        if self.logit_noise:
            error = torch.randn(logits.shape, generator=self._noise).to(logits.device)
            logits = logits * (1 + self.logit_noise * error)
        return logits

    def logits(self, digit: Tensor, count: Tensor, tokens: Tensor) -> Tensor:
        """Logits (rows, RESPONSE_LENGTH, VOCABULARY) for every position of the responses `tokens`."""
        start = torch.full_like(tokens[:, :1], repeat_task.START)
        gates = self._input_gates(torch.cat([start, tokens[:, :-1]], dim=1))
        state = self._first_state(digit, count)
        states = []
        for position in range(tokens.shape[1]):
            state = self._cell(gates[:, position], state)
            states.append(state)
        return self._head(torch.stack(states, dim=1))

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def sample(
        self, digit: Tensor, count: Tensor, noise: Tensor, *, temperature: float = 1.0
    ) -> PolicySample:
        """Sample responses with Gumbel noise of shape (RESPONSE_LENGTH, rows, VOCABULARY).

        The log-probabilities are those of the distribution that the tokens were sampled from.
        """
        state = self._first_state(digit, count)
        # The input gates of a token do not depend on the state, so they are computed once for all positions.
        table = self._input_gates(torch.arange(repeat_task.VOCABULARY + 1, device=digit.device))
        token = torch.full_like(digit, repeat_task.START)
        tokens, all_logits = [], []
        for position in range(noise.shape[0]):
            state = self._cell(F.embedding(token, table), state)
            logits = self._head(state)
            if temperature != 1.0:
                logits = logits / temperature
            token = torch.argmax(logits + noise[position], dim=-1)
            tokens.append(token)
            all_logits.append(logits)
        chosen = torch.stack(tokens, dim=1)
        log_probs = torch.log_softmax(torch.stack(all_logits, dim=1), dim=-1)
        return PolicySample(tokens=chosen, log_probs=torch.gather(log_probs, -1, chosen[..., None])[..., 0])
