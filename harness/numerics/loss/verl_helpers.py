"""Definitions of small functions of verl in numpy, to name the function that is wrong.

Cases say which step is wrong. Most steps call helpers, for example `masked_sum`. Each
call of a helper is compared with its definition, so that a wrong one is named instead of the step that called
it. A helper is only named if a result is wrong: the comparison here is rough, results have error bounds.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUGH = 1e-4
REPORTS = re.compile(r"/verl/(utils/debug/|utils/metric/|trainer/ppo/metric_utils)")
"""Files of verl that compute nothing but metrics."""

STEP, ROUGH_SLOPE = 1e-5, 1e-2
"""Of differences that approximate a gradient: the step, and the relative error that says nothing."""
Arguments = Mapping[str, Any]


def array(tensor: Any) -> NDArray[Any]:
    """A tensor, or the values of a nested one, as numpy array in float64 or int64."""
    if getattr(tensor, "is_nested", False):
        tensor = tensor.values()
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = tensor.double() if tensor.dtype.is_floating_point else tensor
        tensor = tensor.numpy()
    return np.asarray(tensor)


@dataclass(frozen=True, kw_only=True)
class Helper:
    """A function of verl and its definition: from its arguments to the acceptable results. gathers: its
    gradient needs the other ranks, so it cannot be compared in a call of its own."""

    module: str
    name: str
    defined: Callable[[Arguments], list[NDArray[Any]]]
    seen: Callable[[Any], NDArray[Any]] = array
    gathers: bool = False


def _mask(mask: Any) -> NDArray[Any]:
    """A mask as numbers; ValueError if it is none."""
    found = np.asarray(array(mask) * 1.0)
    if not np.isin(found, (0.0, 1.0)).all():
        raise ValueError("a mask has zeros and ones only")
    return found


def _masked_sum(given: Arguments) -> list[NDArray[Any]]:
    mask = _mask(given["mask"])
    return [np.where(mask != 0, array(given["values"]), 0.0).__mul__(mask).sum(axis=given.get("axis"))]


def _masked_mean(given: Arguments) -> list[NDArray[Any]]:
    return [_masked_sum(given)[0] / (_mask(given["mask"]).sum(axis=given.get("axis")) + 1e-8)]


def _mean_of_processes(given: Arguments) -> list[NDArray[Any]]:
    """The mean over all processes, where there is one."""
    values, mask = array(given["local_tensor"]), _mask(given["local_mask"])
    if values.shape != mask.shape:
        raise ValueError("each value has its own mask")
    return [(values * mask).sum() / (mask.sum() + 1e-8)]


def _aggregated(given: Arguments) -> list[NDArray[Any]]:
    mask, mode = _mask(given["loss_mask"]), given["loss_agg_mode"]
    losses = np.where(mask != 0, array(given["loss_mat"]), 0.0)
    dp_size = given.get("dp_size") or 1
    rows, tokens = losses.sum(axis=1), mask.sum(axis=1)
    sequences = given.get("global_batch_size") or max((tokens > 0).sum(), 1)
    if mode == "token-mean":
        return [losses.sum() / (given.get("batch_num_tokens") or max(tokens.sum(), 1)) * dp_size]
    if mode == "token-sum":
        return [losses.sum() * dp_size]
    if mode == "seq-mean-token-mean":
        means = rows / np.maximum(tokens, 1)
        # Releases up to 0.6.0 count sequences without tokens.
        return [means.sum() / sequences * dp_size, np.asarray(means.mean())]
    if mode == "seq-mean-token-sum":
        return [rows.sum() / sequences * dp_size, np.asarray(rows.mean())]
    factor = given.get("loss_scale_factor") or mask.shape[1]
    # Releases up to 0.7.0 do not divide by sequences.
    return [rows.sum() / sequences / factor * dp_size, rows.sum() / factor]


def _divergence(given: Arguments) -> list[NDArray[Any]]:
    distance = array(given["logprob"]) - array(given["ref_logprob"])
    kind = given["kl_penalty"].removesuffix("+")
    if kind in {"kl", "k1"}:
        return [distance]
    if kind == "abs":
        return [np.abs(distance)]
    if kind in {"mse", "k2"}:
        return [distance**2 / 2]
    clamped = np.clip(-distance, -20, 20)
    return [np.clip(np.exp(clamped) - clamped - 1, -10, 10)]


def _log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _log_probs(given: Arguments) -> list[NDArray[Any]]:
    found = _log_softmax(array(given["logits"]))
    return [np.take_along_axis(found, array(given["labels"])[..., None], axis=-1)[..., 0]]


def _scaled(given: Arguments) -> list[NDArray[Any]]:
    temperature = array(given["temperature"]) * 1.0
    if temperature.ndim > 1 and np.broadcast_shapes(temperature.shape, given["logits"].shape) != tuple(
        given["logits"].shape
    ):
        raise ValueError("each row has one temperature")
    return [array(given["logits"]) / temperature.reshape(-1, *(1,) * (given["logits"].dim() - 1))]


def _is_one(given: Arguments) -> list[NDArray[Any]]:
    temperature = given["temperature"]
    return [np.asarray(not _is_tensor(temperature) and float(temperature) == 1.0)]


def _entropies(given: Arguments) -> list[NDArray[Any]]:
    found = _log_softmax(array(given["logits"]))
    return [-(np.exp(found) * found).sum(axis=-1)]


def _advantages(given: Arguments) -> list[NDArray[Any]]:
    scores, index = array(given["token_level_rewards"]).sum(axis=1), np.asarray(given["index"])
    found = np.zeros(len(scores))
    for group in np.unique(index):
        own = index == group
        single = own.sum() == 1
        mean, spread = (0.0, 1.0) if single else (scores[own].mean(), scores[own].std(ddof=1))
        found[own] = scores[own] - mean
        if given.get("norm_adv_by_std_in_grpo", True):
            found[own] /= spread + given.get("epsilon", 1e-6)
    return [found[:, None] * array(given["response_mask"])]


def _weights(given: Arguments) -> list[NDArray[Any]]:
    mask, ratio = _mask(given["response_mask"]), array(given["log_ratio"])
    *lower, upper = str(given["rollout_is_threshold"]).split("_")
    of_tokens = given["rollout_is"] == "token"
    if not of_tokens:
        ratio = np.where(mask != 0, ratio, 0.0).sum(axis=1, keepdims=True)
    raw = np.exp(np.clip(ratio, -20, 20)) * mask
    found = np.minimum(raw, float(upper))
    if lower:
        found = np.where((raw >= float(lower[0])) & (raw <= float(upper)), raw, 0.0)
    if not given.get("rollout_is_batch_normalize"):
        return [found]
    rows = mask.any(axis=1)
    return [found / (found[mask != 0] if of_tokens else found.max(axis=1)[rows]).mean()]


def _nested(tensor: Any) -> NDArray[Any]:
    """The values of a tensor that must be nested."""
    if not tensor.is_nested:
        raise TypeError("the tensor is not nested")
    return array(tensor)


def _repeated(given: Arguments) -> list[NDArray[Any]]:
    return [np.repeat(array(given["tensor"]), np.diff(array(given["nested_tensor"].offsets())))]


def _responses(given: Arguments) -> list[NDArray[Any]]:
    """Each response with the output of the token before it, padded to the longest or widest."""
    values, data = array(given["tensor"]), given["data"]
    prompts, responses = data["prompts"], data["responses"]
    if prompts.is_nested:
        of_prompts, of_responses = (np.diff(array(one.offsets())) for one in (prompts, responses))
        width = int(of_responses.max())
    else:
        mask, first = array(data["attention_mask"]), prompts.shape[1]
        of_prompts, of_responses = mask[:, :first].sum(axis=1), mask[:, first:].sum(axis=1)
        width = responses.shape[1]
    found = np.zeros((len(of_responses), width))
    for row, end in enumerate(np.cumsum(of_prompts + of_responses)):
        found[row, : of_responses[row]] = values[end - of_responses[row] - 1 : end - 1]
    return [found]


def _from_nested(given: Arguments) -> list[NDArray[Any]]:
    values, ends = array(given["tensor"]), array(given["tensor"].offsets())[1:]
    lengths = np.diff(array(given["response_mask"].offsets()))
    return [
        np.concatenate(
            [values[end - length - 1 : end - 1] for end, length in zip(ends, lengths, strict=True)]
        )
    ]


def _to_nested(given: Arguments) -> list[NDArray[Any]]:
    rows, lengths = array(given["tensor"]), np.diff(array(given["response_mask"].offsets()))
    return [np.concatenate([row[:length] for row, length in zip(rows, lengths, strict=True)])]


def _unpadded(given: Arguments) -> list[NDArray[Any]]:
    return [array(given["hidden_states"])[array(given["attention_mask"]) != 0]]


def _restored(given: Arguments) -> list[NDArray[Any]]:
    order = [row for rows in given["batch_idx_list"] for row in rows]
    data = given["data"]
    rows = [array(row) for row in data.unbind()]
    found = [rows[order.index(row)] for row in range(len(rows))]
    return [np.concatenate(found) if data.is_nested else np.stack(found)]


def _first(batch: Any) -> NDArray[Any]:
    return array(_tensors(batch)[0])


def _split(given: Arguments) -> list[NDArray[Any]]:
    return [_first(given.get("self", given.get("td")))]


def _joined(parts: Any) -> NDArray[Any]:
    return np.concatenate([_first(one) for one in parts])


def _bounds(found: Any) -> NDArray[Any]:
    ends = [(one["lower"], one["upper"]) for one in found.values()]
    return np.array([[np.nan if end is None else end for end in pair] for pair in ends], dtype=np.float64)


def _thresholds(given: Arguments) -> list[NDArray[Any]]:
    """Lower and upper bound of each option: "LOWER_UPPER", or an upper bound, whose reciprocal is the lower
    one of ratios."""
    options, spec = given["options"], given["threshold_spec"]
    texts = [one.strip() for one in str(spec).split(",")]
    found = []
    for option, text in zip(options, texts * (len(options) if len(texts) == 1 else 1), strict=False):
        *lower, upper = text.split("_")
        least = float(lower[0]) if lower else 1 / float(upper)
        found.append((least if option.endswith("k1") else np.nan, float(upper)))
    return [np.array(found)]


def _selected(given: Arguments) -> list[NDArray[Any]]:
    indices = array(given.get("idxs", given.get("indices")))
    if indices.dtype.kind == "b":
        raise ValueError("the definition is that of numbers of rows")
    first = _tensors(given.get("self", given.get("batch")))[0]
    if not first.is_nested:
        return [array(first)[indices]]
    rows = first.unbind()
    return [np.concatenate([array(rows[int(index)]) for index in indices])]


def _tensors(batch: Any) -> list[Any]:
    """The fields of a batch that are tensors, by their names."""
    batch = getattr(batch, "batch", batch)
    found = (batch.get(name) for name in sorted(batch.keys()))
    return [one for one in found if hasattr(one, "is_nested")]


def _labels(given: Arguments) -> list[NDArray[Any]]:
    """The next token of each token; anything after the last token of a row."""
    ids = given["micro_batch"]["input_ids"]
    found = np.roll(array(ids), -1).astype(np.float64)
    found[array(ids.offsets())[1:] - 1] = np.nan
    return [_slice(found, 0, np.nan)]


def _slice(values: NDArray[Any], axis: int, padding: float | None = None) -> NDArray[Any]:
    """The part of this rank in the sequence-parallel group. The values are padded at the end of the axis so
    that all ranks have equally many; ValueError without a padding if they have not."""
    ulysses: Any = import_module(ULYSSES)
    group, distributed = ulysses.get_ulysses_sequence_parallel_group(), import_module("torch.distributed")
    if group is None:
        return values
    size = distributed.get_world_size(group)
    if padding is not None:
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, -values.shape[axis] % size)
        values = np.pad(values, widths, constant_values=padding)
    return np.asarray(np.split(values, size, axis=axis)[distributed.get_rank(group)])


def _exchanged(values: NDArray[Any], divided: int, joined: int) -> list[NDArray[Any]]:
    """This rank's part along `divided`, of all ranks along `joined`; only its own values are known."""
    ulysses: Any = import_module(ULYSSES)
    group, distributed = ulysses.get_ulysses_sequence_parallel_group(), import_module("torch.distributed")
    if group is None:
        return [values]
    size, rank = distributed.get_world_size(group), distributed.get_rank(group)
    own = np.split(values, size, axis=divided)[rank]
    parts = [np.full(own.shape, np.nan) for _ in range(size)]
    parts[rank] = own
    return [np.concatenate(parts, axis=joined)]


def _sliced(given: Arguments) -> list[NDArray[Any]]:
    return [_slice(array(given["x"]), given["dim"], 0 if given["padding"] else None)]


def _gathered(values: NDArray[Any], axis: int, padding: int) -> list[NDArray[Any]]:
    """The parts of all ranks without the padding at the end. Only the part of this rank is known."""
    ulysses: Any = import_module(ULYSSES)
    group, distributed = ulysses.get_ulysses_sequence_parallel_group(), import_module("torch.distributed")
    if group is not None:
        parts = [np.full(values.shape, np.nan) for _ in range(distributed.get_world_size(group))]
        parts[distributed.get_rank(group)] = values
        values = np.concatenate(parts, axis=axis)
    return [np.delete(values, np.s_[values.shape[axis] - padding :], axis=axis)]


def _gathered_outputs(given: Arguments) -> list[NDArray[Any]]:
    dropped = given["padding_size"] if given["unpad_dim"] is not None else 0
    return _gathered(array(given["x"]), given["gather_dim"], dropped)


def _sliced_tokens(given: Arguments) -> list[NDArray[Any]]:
    padding = given.get("pad_value", 0) if given["sp_size"] > 1 else None
    return [_slice(array(given["input_ids_rmpad"]), 1, padding)]


CORE, FUNCTIONAL = "verl.trainer.ppo.core_algos", "verl.utils.torch_functional"
PADDING = "verl.workers.utils.padding"
CORRECTION = "verl.trainer.ppo.rollout_corr_helper"
TENSORDICT = "verl.utils.tensordict_utils"
ULYSSES = "verl.utils.ulysses"
FSDP_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
HELPERS = (
    Helper(module=FUNCTIONAL, name="masked_sum", defined=_masked_sum),
    Helper(module=FUNCTIONAL, name="masked_mean", defined=_masked_mean),
    Helper(module=FUNCTIONAL, name="distributed_masked_mean", defined=_mean_of_processes),
    Helper(module=FUNCTIONAL, name="logprobs_from_logits_v2", defined=_log_probs),
    Helper(module=FUNCTIONAL, name="logprobs_from_logits", defined=_log_probs),
    Helper(module=FUNCTIONAL, name="entropy_from_logits", defined=_entropies),
    Helper(module=FUNCTIONAL, name="expand_as_nested", defined=_repeated, seen=_nested),
    Helper(module=FSDP_ENGINE, name="_scale_logits_by_temperature", defined=_scaled),
    Helper(module=FSDP_ENGINE, name="_is_scalar_unit_temperature", defined=_is_one),
    Helper(module=CORE, name="agg_loss", defined=_aggregated),
    Helper(module=CORE, name="kl_penalty_forward", defined=_divergence),
    Helper(module=CORE, name="kl_penalty", defined=_divergence),
    Helper(
        module=CORE,
        name="compute_grpo_outcome_advantage",
        defined=_advantages,
        seen=lambda found: array(found[0]),
    ),
    Helper(
        module=CORRECTION,
        name="compute_rollout_correction_weights",
        defined=_weights,
        seen=lambda found: array(found[0]),
    ),
    Helper(module=PADDING, name="no_padding_2_padding", defined=_responses),
    Helper(module=PADDING, name="response_from_nested", defined=_from_nested, seen=_nested),
    Helper(module=PADDING, name="response_to_nested", defined=_to_nested, seen=_nested),
    Helper(
        module="verl.utils.npu_flash_attn_utils",
        name="unpad_input",
        defined=_unpadded,
        seen=lambda found: array(found[0]),
    ),
    Helper(module="verl.protocol", name="DataProto.split", defined=_split, seen=_joined),
    Helper(module="verl.protocol", name="DataProto.select_idxs", defined=_selected, seen=_first),
    Helper(module=TENSORDICT, name="chunk_tensordict", defined=_split, seen=_joined),
    Helper(module=TENSORDICT, name="index_select_tensor_dict", defined=_selected, seen=_first),
    Helper(module=CORRECTION, name="_parse_rollout_rs_thresholds", defined=_thresholds, seen=_bounds),
    Helper(module="verl.utils.seqlen_balancing", name="restore_dynamic_batch", defined=_restored),
    Helper(module=ULYSSES, name="slice_input_tensor", defined=_sliced),
    Helper(
        module=ULYSSES,
        name="all_to_all_tensor",
        defined=lambda given: _exchanged(
            array(given["local_input"]), given["scatter_dim"], given["gather_dim"]
        ),
        gathers=True,
    ),
    Helper(
        module=ULYSSES,
        name="gather_seq_scatter_heads",
        defined=lambda given: _exchanged(array(given["x"]), given["head_dim"], given["seq_dim"]),
        gathers=True,
    ),
    Helper(
        module=ULYSSES,
        name="gather_heads_scatter_seq",
        defined=lambda given: _exchanged(array(given["x"]), given["seq_dim"], given["head_dim"]),
        gathers=True,
    ),
    Helper(
        module="verl.models.transformers.monkey_patch",
        name="repeat_kv",
        defined=lambda given: [np.repeat(array(given["hidden_states"]), given["n_rep"], axis=2)],
    ),
    Helper(
        module=ULYSSES,
        name="all_gather_tensor",
        defined=lambda given: _gathered(array(given["local_tensor"]), 0, 0),
        gathers=True,
    ),
    Helper(module=ULYSSES, name="gather_outputs_and_unpad", defined=_gathered_outputs, gathers=True),
    Helper(
        module=FSDP_ENGINE,
        name="FSDPEngine._gather_and_unpad_packed",
        defined=lambda given: _gathered(array(given["tensor"]), 0, given["pad_size"]),
        gathers=True,
    ),
    Helper(
        module=ULYSSES,
        name="ulysses_pad_and_slice_inputs",
        defined=_sliced_tokens,
        seen=lambda found: array(found[0]),
    ),
    Helper(
        module=FSDP_ENGINE,
        name="FSDPEngineWithLMHead.prepare_model_inputs",
        defined=_labels,
        seen=lambda found: array(found[1]["input_ids_rmpad_rolled"]).reshape(-1),
    ),
)


@contextmanager
def watched_helpers(wrong: Callable[[Any], None]) -> Iterator[None]:
    """Compare each call of a helper with its definition, wherever verl imported it; `wrong` gets the
    function of a call with another result. Gradients are compared at the end, in calls of their own: in
    between they would be part of what is measured."""
    for name in dict.fromkeys(helper.module for helper in HELPERS):
        # What cannot be imported is called by nobody here; its own check says so.
        with suppress(ImportError):
            import_module(name)
    users = [module for name, module in sys.modules.items() if name.startswith("verl.")]
    calls: list[_Call] = []
    with ExitStack() as stack:
        for helper in HELPERS:
            if helper.module in sys.modules:
                _watch(stack, helper, users, wrong, calls)
        yield
    for call in calls:
        if _slopes_differ(call):
            wrong(call.function)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of a helper with the right result. place: which of the accepted results it is."""

    helper: Helper
    function: Any
    given: inspect.BoundArguments
    place: int


def _watch(
    stack: ExitStack,
    helper: Helper,
    users: list[ModuleType],
    wrong: Callable[[Any], None],
    calls: list[_Call],
) -> None:
    owner: Any = import_module(helper.module)
    *classes, name = helper.name.split(".")
    for one in classes:
        owner = getattr(owner, one, None)
    function = vars(owner).get(name) if owner is not None else None
    if function is None:
        return
    signature = inspect.signature(function)

    @functools.wraps(function)
    def watching(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            accepted = helper.defined(given.arguments)
        except Exception:  # noqa: BLE001 - a call that the definition does not cover says nothing
            return found
        try:
            values = helper.seen(found)
            place = next((place for place, one in enumerate(accepted) if _agrees(values, one)), None)
        except Exception:  # noqa: BLE001 - the definition has a value, and this result has none
            place = None
        if place is None:
            wrong(function)
        elif (
            getattr(found, "requires_grad", False)
            and not helper.gathers
            and not _has_another_gradient(given.arguments)
        ):
            calls.append(_Call(helper=helper, function=function, given=given, place=place))
        return found

    for holder in [owner] if classes else [owner, *users]:
        if vars(holder).get(name) is function:
            setattr(holder, name, watching)
            stack.callback(setattr, holder, name, function)


def _agrees(values: NDArray[Any], defined: NDArray[Any]) -> bool:
    return values.shape == np.shape(defined) and np.allclose(
        np.where(np.isnan(defined), 0.0, values), np.nan_to_num(defined), rtol=ROUGH, atol=ROUGH
    )


def _slopes_differ(call: _Call) -> bool:
    """Whether the gradient of a result with right values is that of its definition, in one direction."""
    given = dict(call.given.arguments)
    inputs = {
        name: one.detach().requires_grad_()
        for name, one in given.items()
        if getattr(one, "requires_grad", False)
    }
    torch: Any = import_module("torch")
    try:
        call.given.arguments.update(inputs)
        found = call.function(*call.given.args, **call.given.kwargs)
        slopes = torch.autograd.grad(found.sum(), list(inputs.values()), allow_unused=True)
        rng = np.random.default_rng(1)
        slope, moved = 0.0, []
        for one, gradient in zip(inputs.values(), slopes, strict=True):
            direction = rng.normal(size=tuple(one.shape))
            slope += float((direction * array(gradient)).sum()) if gradient is not None else 0.0
            moved.append(STEP * torch.as_tensor(direction))
        ends = []
        for sign in (1, -1):
            steps = zip(inputs.items(), moved, strict=True)
            there = {name: one.detach().cpu().double() + sign * step for (name, one), step in steps}
            ends.append(float(np.nansum(call.helper.defined({**given, **there})[call.place])))
    except Exception:  # noqa: BLE001 - a gradient that cannot be computed here says nothing
        return False
    expected = (ends[0] - ends[1]) / (2 * STEP)
    return not abs(slope - expected) <= ROUGH_SLOPE * (1 + abs(expected))


def _has_another_gradient(given: Arguments) -> bool:
    """Estimators whose name ends with + have the gradient of another one."""
    return str(given.get("kl_penalty", "")).endswith("+")


def place_in(code: CodeType, line: int) -> str:
    """File, line and name of a function of verl."""
    file = code.co_filename
    return f"{file[max(file.rfind('verl/'), 0) :]}:{line} {code.co_name}"


def place_of(function: Any) -> str:
    """File, line and name of a function of verl, below its decorators."""
    code = _decorated(function).__code__
    return place_in(code, code.co_firstlineno)


def raised_in(error: BaseException) -> str:
    """The innermost line of verl that raised an exception and whose function got what it asks for, "" if verl
    is not concerned. A function with an argument of another type than it declares, with arguments for which
    its definition has no value, or that refuses its arguments itself, is not blamed for what it raises, but
    its caller."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if "/verl/" in frame.f_code.co_filename
        and not frame.f_code.co_name.startswith("<")
        # What only reports gets its arguments from the functions that compute.
        and not REPORTS.search(frame.f_code.co_filename)
    ]
    if not frames:
        return ""
    # A variable without a value was lost in the function that reads it.
    outer = len(frames)
    if not isinstance(error, NameError):
        # What is called by a function with wrong arguments got them from it.
        outer = next((at for at, (frame, _) in enumerate(frames) if not _got_what_it_needs(frame)), outer)
        if outer == len(frames) > 1 and _refuses_arguments(*frames[-1]):
            outer -= 1
    frame, line = frames[max(outer - 1, 0)]
    return place_in(frame.f_code, line)


def _refuses_arguments(frame: FrameType, line: int) -> bool:
    """Whether a line of a function is an assertion about its parameters only."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        function = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError):
        return False
    assertions = [one for one in ast.walk(function) if isinstance(one, ast.Assert)]
    tested = [
        {part.id for part in ast.walk(one.test) if isinstance(part, ast.Name)}
        for one in assertions
        if one.lineno <= line - first + 1 <= (one.end_lineno or one.lineno)
    ]
    return bool(tested) and tested[0] - vars(builtins).keys() <= {*_parameters(frame.f_code)}


def _got_what_it_needs(frame: FrameType) -> bool:
    code = frame.f_code
    given = {name: frame.f_locals[name] for name in _parameters(code) if name in frame.f_locals}
    owner = type(given["self"]) if "self" in given else given.get("cls")
    function = getattr(owner, code.co_name, None) if owner else frame.f_globals.get(code.co_name)
    declared = inspect.signature(function).parameters if callable(function) else {}
    if not all(
        _is_of_type(one, declared[name].annotation) or one is declared[name].default
        for name, one in given.items()
        if name in declared
    ):
        return False
    module = str(frame.f_globals.get("__name__"))
    for helper in HELPERS:
        if (helper.module, helper.name) == (module, code.co_name):
            try:
                helper.defined(given)
            except Exception:  # noqa: BLE001 - whatever it is, there is no value
                return False
    return True


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _is_of_type(value: object, declared: object) -> bool:
    """Whether a value can be one of a declared type: tensors, batches, numbers, and mappings of tensors."""
    name = declared if isinstance(declared, str) else getattr(declared, "__name__", "")
    name = name.rpartition(".")[2]
    if isinstance(value, dict):
        return all(part is not None for part in value.values()) or "Tensor" not in str(declared)
    if name in {"Tensor", "FloatTensor", "TensorDict"}:
        return _is_tensor(value)
    if name == "DataProto":
        return hasattr(value, "batch")
    return name not in {"int", "float", "str", "bool"} or not _is_tensor(value)


def _is_tensor(value: object) -> bool:
    return hasattr(value, "batch_size") or hasattr(value, "requires_grad")


def _decorated(function: Any) -> Any:
    """The function below its decorators: the first in their closures that is no nested function."""
    seen = [inspect.unwrap(function)]
    for one in seen:
        if getattr(one, "__code__", None) is not None and "<locals>" not in one.__qualname__:
            return one
        cells = getattr(one, "__closure__", None) or ()
        seen += [cell.cell_contents for cell in cells if callable(cell.cell_contents)][: 8 - len(seen)]
    return function
