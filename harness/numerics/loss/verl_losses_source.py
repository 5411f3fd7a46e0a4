"""Reads from verl's source, without importing it, which loss functions a release has and where the objective
that they compute differs from the standard one.

The result is stored in `verl_losses.json` for every release and for the commits of `matrix.yaml`.
`python -m benchmarks.verl_losses` compares the file with the releases on the package index and writes it.
For other commits, the installed source is read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CORE_ALGOS = "verl/trainer/ppo/core_algos.py"
ROLLOUT_CORRECTION = "verl/trainer/ppo/rollout_corr_helper.py"

LEGACY_ACTOR = "verl/workers/actor/dp_actor.py"
ENGINE_LOSSES = "verl/workers/utils/losses.py"
ENGINE_WORKERS = "verl/workers/engine_workers.py"
ENGINE_PADDING = "verl/workers/utils/padding.py"
QUEUE_TRAINER = "verl/trainer/ppo/v1/utils.py"
TRAINER = "verl/trainer/ppo/ray_trainer.py"
BALANCING = "verl/utils/seqlen_balancing.py"
ON_POLICY = "on_policy"
"""A worker takes the new log-probabilities as the old ones if a step has one update."""

LOSS_SCALE_FACTOR = "loss_scale_factor"
"""Engine workers pass the setting of that name to `agg_loss`."""

NESTED = "nested"
"""The trainer passes nested tensors, from a transfer queue."""

SESSIONS = "sessions"
"""Only the last output of a session takes part in the advantages of its group; the others get the same."""

TRAINER_STEPS = "trainer_steps"
"""The trainer's steps that call workers are methods of its class, not part of its loop."""

MICRO_BATCH_LIMIT = "micro_batch_limit"
"""Dynamic micro-batches never exceed their largest number of tokens: more are made until none does."""

MINI_BATCHES = "mini_batches"
"""The worker above an engine splits a batch into mini-batches."""

REJECTION_LEVELS, REJECTION_VETO = "rejection:levels", "rejection:veto"
"""Rollout correction rejects tokens by ratios of tokens and responses, or responses by their worst token."""

REJECTION_ESTIMATORS = "rejection:estimators"
"""Rollout correction rejects tokens and responses by estimators of the KL divergence."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

ReadSource = Callable[[str], str | None]
"""The text of a file of verl by its path in the repository; None if there is no such file."""


@dataclass(frozen=True, kw_only=True)
class ReleasedLosses:
    """What the losses of one release are.

    capabilities: names that `LossCase.requires` uses. differences: ids of `release_objectives.DIFFERENCES`.
    """

    capabilities: frozenset[str]
    differences: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class InstalledLosses:
    """The losses of the installed verl by its source, as the program in the cell writes them."""

    capabilities: tuple[str, ...]
    differences: tuple[str, ...]


def read_losses(read: ReadSource) -> ReleasedLosses:
    """The losses of the release whose files `read` returns. SyntaxError if a file cannot be parsed."""
    functions = _functions(read(CORE_ALGOS) or "")
    correction = _functions(read(ROLLOUT_CORRECTION) or "")
    weights = correction.get("compute_rollout_correction_weights")
    policies = dict(_registered(functions, "register_policy_loss"))
    vanilla = policies.get("vanilla") or functions.get("compute_policy_loss")
    gspo = policies.get("gspo")
    aggregate = functions.get("agg_loss")
    offered = {
        "vanilla": vanilla is not None,
        "gspo": gspo is not None,
        "rollout_is_weights": "rollout_is_weights" in _parameters(vanilla),
        "global_denominators": "batch_num_tokens" in _parameters(aggregate),
        "token-sum": "token-sum" in _texts(aggregate),
        "kl:k3+": _cuts_last_character(functions.get("kl_penalty"), "kl_penalty"),
        "weights": "compute_rollout_correction_weights" in correction,
        "weights:icepop": "_parse_rollout_is_threshold" in correction,
        "weights:normalised": "rollout_is_batch_normalize" in _parameters(weights),
        REJECTION_LEVELS: "rollout_rs_threshold_lower"
        in _parameters(correction.get("compute_rollout_rejection_mask")),
        REJECTION_VETO: "rollout_token_veto_threshold"
        in _parameters(correction.get("compute_rollout_correction_and_rejection_mask")),
        REJECTION_ESTIMATORS: "_parse_rollout_rs_thresholds" in correction,
        ON_POLICY: _assigns(read(LEGACY_ACTOR) or "", "on_policy"),
        LOSS_SCALE_FACTOR: "config.loss_scale_factor" in (read(ENGINE_LOSSES) or ""),
        NESTED: "response_from_nested" in _functions(read(ENGINE_PADDING) or ""),
        TRAINER_STEPS: "_update_actor" in _methods(read(TRAINER) or "", "RayPPOTrainer"),
        MICRO_BATCH_LIMIT: _loops(_functions(read(BALANCING) or "").get("rearrange_micro_batches")),
        MINI_BATCHES: "train_mini_batch" in _methods(read(ENGINE_WORKERS) or "", "TrainingWorker"),
        SESSIONS: "compute_advantage_for_multi_trajectories" in _functions(read(QUEUE_TRAINER) or ""),
    }
    differs = {
        "gspo-ignores-loss-agg-mode": gspo is not None and _fixes_mode(gspo),
        "sum-norm-without-sequences": aggregate is not None and _sum_over_horizon(aggregate),
        "empty-sequences-counted": aggregate is not None and not _compares_with_zero(aggregate),
        "weights-count-empty-sequences": "rollout_is_batch_normalize" in _parameters(weights)
        and not _compares_with_zero(weights),
        "dp-size-divides": aggregate is not None and _is_divided_by_dp_size(aggregate),
    }
    return ReleasedLosses(
        capabilities=frozenset(name for name, present in offered.items() if present),
        differences=frozenset(name for name, present in differs.items() if present),
    )


def installed_losses(folder: Path) -> InstalledLosses:
    """The losses of the package `verl` in this folder."""

    def read(path: str) -> str | None:
        file = folder / path
        return file.read_text("utf-8") if file.is_file() else None

    losses = read_losses(read)
    return InstalledLosses(
        capabilities=tuple(sorted(losses.capabilities)), differences=tuple(sorted(losses.differences))
    )


def _functions(source: str) -> dict[str, Function]:
    body = ast.parse(source).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _methods(source: str, owner: str) -> frozenset[str]:
    classes = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == owner]
    return frozenset(node.name for one in classes for node in one.body if isinstance(node, ast.FunctionDef))


def _assigns(source: str, name: str) -> bool:
    return any(
        isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in node.targets)
        for node in ast.walk(ast.parse(source))
    )


def _registered(functions: dict[str, Function], decorator: str) -> Iterator[tuple[str, Function]]:
    for function in functions.values():
        for call in function.decorator_list:
            if isinstance(call, ast.Call) and _name(call.func) == decorator and call.args:
                name = call.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value, function


def _name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _parameters(function: Function | None) -> frozenset[str]:
    if function is None:
        return frozenset()
    arguments = function.args
    return frozenset(
        argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    )


def _texts(function: Function | None) -> frozenset[str]:
    """The string constants of a function, without its docstring."""
    if function is None:
        return frozenset()
    constants = (node for statement in function.body for node in ast.walk(statement))
    return frozenset(
        node.value
        for node in constants
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
    )


def _cuts_last_character(function: Function | None, name: str) -> bool:
    """Whether the function removes a suffix of one character from the variable `name`: `name[:-1]`."""
    return function is not None and any(
        isinstance(node, ast.Subscript) and ast.unparse(node) == f"{name}[:-1]" for node in ast.walk(function)
    )


def _fixes_mode(policy: Function) -> bool:
    """Whether a policy loss passes a constant to `agg_loss` instead of its own `loss_agg_mode`."""
    return any(
        keyword.arg == "loss_agg_mode" and isinstance(keyword.value, ast.Constant)
        for call in ast.walk(policy)
        if isinstance(call, ast.Call) and _name(call.func) == "agg_loss"
        for keyword in call.keywords
    )


def _sum_over_horizon(aggregate: Function) -> bool:
    """Whether sums of sequences are divided by the horizon without a number of sequences."""
    horizons = {"loss_mask.shape[-1]", "loss_scale_factor"}
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and ast.unparse(node.left) == "torch.sum(seq_losses)"
        and ast.unparse(node.right) in horizons
        for node in ast.walk(aggregate)
    )


def _is_divided_by_dp_size(aggregate: Function) -> bool:
    """Whether the denominator of sequences contains dp_size as a factor."""
    factors = {"global_batch_size", "dp_size"}
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, ast.Mult)
        and {ast.unparse(node.value.left), ast.unparse(node.value.right)} == factors
        for node in ast.walk(aggregate)
    )


def _loops(function: Function | None) -> bool:
    """Whether a function has a loop that ends on a condition."""
    return function is not None and any(isinstance(node, ast.While) for node in ast.walk(function))


def _compares_with_zero(function: Function | None) -> bool:
    """Whether sequences without tokens are recognised, by comparing their lengths with zero."""
    return function is not None and any(
        isinstance(node, ast.Compare) and ast.unparse(node).endswith(" > 0") for node in ast.walk(function)
    )
