"""Reductions that HCCL has and gloo lacks before torch 2.9.

These are averages, and every reduce_scatter that does not sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from harness.devices.sim.operators.torch_internals import overload, schema_of

Reduction = Callable[..., Any]


def add_reductions(operator: Any, arguments: Sequence[str]) -> Reduction:
    """A c10d reduction of host tensors with every reduction that HCCL has.

    arguments: their names in the operator's schema. The reduction has finished when the call returns, with
    the results of the operator.
    """
    if "reduce_scatter" not in operator.name():
        return _averaging(operator, arguments)
    reduce = overload("c10d", "allreduce_")
    names = [argument.name for argument in schema_of(reduce).arguments]
    return _scattering(_averaging(reduce, names), len(schema_of(operator).returns))


def _averaging(operator: Any, arguments: Sequence[str]) -> Reduction:
    """Adds averages: a sum that is divided afterwards, as torch_npu does it for HCCL.

    The requested reduction is a C++ object that Python cannot read. Gloo rejects an average before it sends
    anything, so its error message shows that one was requested.
    """
    group_index, kind_index = arguments.index("process_group"), arguments.index("reduce_op")

    def run(*args: Any) -> Any:
        result = operator(*args)
        try:
            wait(result)
        except RuntimeError as error:
            if "ReduceOp.AVG" not in str(error):
                raise
            result = operator(*args[:kind_index], _sum_kind(), *args[kind_index + 1 :])
            wait(result)
            # Every reduction writes its first argument.
            for tensor in _as_list(args[0]):
                tensor.div_(_group(args[group_index]).size())
        return result

    return run


def _scattering(reduce: Reduction, results: int) -> Reduction:
    """A reduce_scatter: each rank reduces all parts and then keeps its own.

    reduce: the operator of all_reduce. results: 2 if the operator returns (outputs, work), 1 for only work.
    """

    def run(outputs: Any, inputs: Any, group: Any, kind: Any, *options: Any) -> Any:
        rank = _group(group).rank()
        work = None
        for output, parts in zip(_as_list(outputs), _as_list(inputs), strict=True):
            whole = torch.cat([part.reshape(-1) for part in _as_list(parts)])
            # The timeout is the last argument of every c10d reduction.
            work = reduce([whole], group, kind, None, options[-1])[-1]
            output.copy_(whole.view(-1, output.numel())[rank].view(output.shape))
        return work if results == 1 else (outputs, work)

    return run


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _group(boxed: Any) -> Any:
    return dist.ProcessGroup.unbox(boxed)


def wait(result: Any) -> None:
    """Wait until a collective has finished. Its work object is the last of its results."""
    _as_list(result)[-1].wait()


def _sum_kind() -> Any:
    """ReduceOp.SUM as a C++ object. Python cannot create it, so it is taken from a call of all_reduce."""
    # Imported here because only torch before 2.9 needs this private module.
    from torch.utils._python_dispatch import TorchDispatchMode

    class StoppedError(Exception):
        """Carries the arguments of an operator call, which is thereby aborted."""

    class Catch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise StoppedError(args)

    tensor, group = torch.zeros(1), dist.ProcessGroup(dist.HashStore(), 0, 1)
    try:
        with Catch():
            group.allreduce([tensor])
    except StoppedError as stopped:
        return stopped.args[0][2]
    raise RuntimeError("all_reduce of this torch version does not go through the dispatcher")
