"""What gloo lacks before torch 2.9 and HCCL has: averages, and scattering of anything but a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.devices.sim.operators.torch_internals import overload, schema_of

Reduction = Callable[..., Any]


def complete(operator: Any, arguments: Sequence[str]) -> Reduction:
    """A c10d reduction of host tensors that knows every kind HCCL knows; `arguments`: names in its schema.

    It returns when it is done, with the operator's own results.
    """
    if "reduce_scatter" not in operator.name():
        return _averaging(operator, arguments)
    reduce = overload("c10d", "allreduce_")
    names = [argument.name for argument in schema_of(reduce).arguments]
    return _scattering(_averaging(reduce, names), len(schema_of(operator).returns))


def _averaging(operator: Any, arguments: Sequence[str]) -> Reduction:
    """An average is a sum, then divided, as torch_npu does for HCCL.

    What is asked for is a C++ object that does not tell; gloo's refusal does, before anything is sent.
    """
    group_at, kind_at = arguments.index("process_group"), arguments.index("reduce_op")

    def run(*args: Any) -> Any:
        result = operator(*args)
        try:
            finish(result)
        except RuntimeError as error:
            if "ReduceOp.AVG" not in str(error):
                raise
            result = operator(*args[:kind_at], _sum_kind(), *args[kind_at + 1 :])
            finish(result)
            # All reductions write what comes first.
            for tensor in _listed(args[0]):
                tensor.div_(_group(args[group_at]).size())
        return result

    return run


def _scattering(reduce: Reduction, results: int) -> Reduction:
    """Everything is reduced everywhere, then each rank keeps its part.

    reduce: all_reduce. results: 2 for (outputs, work), 1 for the work alone.
    """

    def run(outputs: Any, inputs: Any, group: Any, kind: Any, *options: Any) -> Any:
        rank = _group(group).rank()
        work = None
        for output, given in zip(_listed(outputs), _listed(inputs), strict=True):
            whole = torch.cat([part.reshape(-1) for part in _listed(given)])
            # The timeout is the last argument of all of them.
            work = reduce([whole], group, kind, None, options[-1])[-1]
            output.copy_(whole.view(-1, output.numel())[rank].view(output.shape))
        return work if results == 1 else (outputs, work)

    return run


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _group(boxed: Any) -> Any:
    return torch.distributed.ProcessGroup.unbox(boxed)


def finish(result: Any) -> None:
    """Wait for a collective: its work is the last of its results."""
    _listed(result)[-1].wait()


def _sum_kind() -> Any:
    """ReduceOp.SUM as operators take it, which Python cannot make: it is caught on its way into one."""
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    class StoppedError(Exception):
        """Carries what an operator was called with; it does not run."""

    class Catch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise StoppedError(args)

    tensor, group = torch.zeros(1), dist.ProcessGroup(dist.HashStore(), 0, 1)
    try:
        with Catch():
            group.allreduce([tensor])
    except StoppedError as stopped:
        return stopped.args[0][2]
    raise RuntimeError("all_reduce of this torch does not go through the dispatcher")
