"""What the simulated device needs from an operator's schema to run it, computed once per operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Args = Sequence[Any]
"""Positional arguments of an operator call."""

Kwargs = Mapping[str, Any]
"""Keyword arguments of an operator call."""

# Operators that accept host tensors together with device tensors, as on every accelerator.
MIXED_DEVICES = frozenset(
    {
        "aten::index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index",
        "aten::_unsafe_index_put",
        "aten::copy_",
        "aten::_copy_from",
        "aten::_copy_from_and_resize",
        "aten::_foreach_copy_",
        "aten::_pack_padded_sequence",
        "npu::npu_fusion_attention_v3",
        "npu::npu_fusion_attention_grad_v3",
        # The number of sequences of each step is on the host.
        "npu::npu_lstm_data",
        "npu::npu_lstm_data_backward",
        "aten::_pad_packed_sequence",
        "aten::tensor_split.tensor_indices_or_sections",
        # Attention of serving engines takes sequence lengths from the host.
        "atb::_npu_flash_attention",
        "atb::_npu_flash_attention_qlens",
        "atb::_npu_flash_attention_unpad",
        "atb::_npu_flash_attention_unpad_v2",
        "atb::_npu_flash_attention_v3",
        "atb::_npu_paged_attention",
        "atb::_npu_paged_attention_mla",
        "atb::_npu_paged_attention_splitfuse",
        "atb::_npu_paged_attention_splitfuse_v2",
        "_C_ascend::swap_blocks",
    }
)

# Not every random operator of torch has a torch.Generator in its schema; all of them have this tag.
_RANDOM_TAG = "nondeterministic_seeded"
# Random operators of torch_npu, which have neither.
_RANDOM = frozenset({"npu::_npu_dropout", "npu::npu_dropout_gen_mask"})


# The lengths of a packed sequence; seed and offset of dropout, which the gradient takes on the host.
_ON_HOST = {"aten::_pack_padded_sequence": (1,), "npu::npu_fusion_attention_v3": (4, 5)}

# Tensors that have to be on the host, which torch_npu itself verifies: scalars of operators of lists.
_HOST_ARGUMENTS = frozenset({"scalars"})

_WAITING_TAGS = frozenset({"dynamic_output_shape", "data_dependent_output"})


@dataclass(frozen=True, kw_only=True)
class OperatorPlan:
    """How to run an operator. Positions number the arguments of its schema from 0.

    tensors: (position, whether it is a list) of every tensor argument. by_name: argument name -> whether it
    is a list. device, generator: (position, name) of that argument, or None. mutable: (position, name) of
    every argument that the operator writes. returns: for each result the (position, name) of the argument
    that it is, None for a new tensor. single: whether there is one result and it is a tensor, not a list or a
    number. random: whether it draws random numbers. mixed: whether it accepts host tensors with device
    tensors. waits: whether a device has to wait for it, because numbers decide the shape or are the result.
    draws: whether a call draws a seed and an offset, which the reference gets as `drawn`. on_host: positions
    of results that stay on the host, except in graphs.
    """

    name: str
    overload: str
    tensors: tuple[tuple[int, bool], ...]
    by_name: Mapping[str, bool]
    device: tuple[int, str] | None
    generator: tuple[int, str] | None
    mutable: tuple[tuple[int, str], ...]
    returns: tuple[tuple[int, str] | None, ...]
    single: bool
    random: bool
    mixed: bool
    waits: bool = False
    draws: Callable[[Args, Kwargs], bool] | None = None
    on_host: tuple[int, ...] = ()

    @property
    def qualified(self) -> str:
        """The name with its overload, for example "aten::sort.stable"."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @property
    def of_torch_npu(self) -> bool:
        """Whether torch_npu implements the operator for the device, not another package."""
        return self.name.partition("::")[0] in {"aten", "npu", "atb"}

    @property
    def base(self) -> str:
        """The name without its namespace."""
        return self.name.partition("::")[2]


def plan_of(operator: Any, schema: Any) -> OperatorPlan:
    """The plan of an OpOverload with its FunctionSchema."""
    arguments = list(enumerate(schema.arguments))
    kinds = {position: str(argument.type) for position, argument in arguments}
    names = {position: argument.name for position, argument in arguments}
    tensors = tuple(
        (position, "List[" in kinds[position])
        for position, _ in arguments
        if "Tensor" in kinds[position] and names[position] not in _HOST_ARGUMENTS
    )
    written = {
        position: argument.alias_info.before_set
        for position, argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    generator = _first(kinds, names, "Generator")
    return OperatorPlan(
        name=schema.name,
        overload=schema.overload_name,
        tensors=tensors,
        by_name={names[position]: many for position, many in tensors},
        device=_first(kinds, names, "Device"),
        generator=generator,
        mutable=tuple((position, names[position]) for position in written),
        returns=tuple(_aliased(result, written, names) for result in schema.returns),
        single=[str(result.type) for result in schema.returns] == ["Tensor"],
        random=generator is not None
        or schema.name in _RANDOM
        # An operator that is told where its random numbers are draws none.
        or (any(tag.name == _RANDOM_TAG for tag in operator.tags) and "offset" not in names.values()),
        mixed=schema.name in MIXED_DEVICES,
        waits=any(tag.name in _WAITING_TAGS for tag in operator.tags),
        on_host=_ON_HOST.get(schema.name, ()),
    )


def returns_view(schema: Any) -> bool:
    """Whether the operator returns a view: a result that shares memory with an argument it does not write."""
    return any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)


def _first(kinds: Mapping[int, str], names: Mapping[int, str], type_name: str) -> tuple[int, str] | None:
    for position, kind in kinds.items():
        if type_name in kind:
            return position, names[position]
    return None


def _aliased(result: Any, written: Mapping[int, Any], names: Mapping[int, str]) -> tuple[int, str] | None:
    if result.alias_info is None:
        return None
    for position, aliases in written.items():
        if aliases == result.alias_info.before_set:
            return position, names[position]
    return None
