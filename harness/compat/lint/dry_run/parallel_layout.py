"""Device meshes of PyTorch and process groups of Megatron, with the arithmetic that these packages check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.compat.lint.dry_run.program_values import UNKNOWN, LibraryCall, Native, Value

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A device mesh: the size of each dimension, by name."""

    sizes: tuple[int, ...]
    names: tuple[str, ...]

    def member(self, name: str) -> Value:
        """An attribute or method of the mesh."""
        if name == "size":
            return Native(name=name, compute=lambda given, named: self._size([*given, *named.values()]))
        if name == "ndim":
            return len(self.sizes)
        if name in ("shape", "mesh_shape"):
            return self.sizes
        return self.names if name == "mesh_dim_names" else UNKNOWN

    def part(self, name: Value) -> Value:
        """`mesh[name]`."""
        if not isinstance(name, str) or name not in self.names:
            return UNKNOWN
        return Mesh(sizes=(self.sizes[self.names.index(name)],), names=(name,))

    def _size(self, given: Sequence[Value]) -> Value:
        if not given or given[0] is None:
            return math.prod(self.sizes)
        dimension = given[0]
        return (
            self.sizes[dimension] if isinstance(dimension, int) and dimension < len(self.sizes) else UNKNOWN
        )


def device_mesh(call: LibraryCall, run: ProgramWalk) -> Value:
    """`init_device_mesh`, which refuses a mesh that is larger than the group of processes.

    With a smaller one, the processes outside of it stop when they ask for their rank in a dimension of it.
    """
    shape, names = call.argument(1, "mesh_shape"), call.named.get("mesh_dim_names", ())
    sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, (list, tuple)) else []
    if not isinstance(shape, (list, tuple)) or len(sizes) != len(shape):
        return UNKNOWN
    if len(sizes) > 1 and 0 in sizes:
        # Such as 8 processes in groups of 16. Which exception it is differs between versions of torch.
        message = f"mesh {tuple(sizes)} has no place for a process"
        raise run.error("AssertionError", message, call.node, call.scope)
    world = run.world_size()
    if isinstance(world, int) and math.prod(sizes) > world:
        message = f"mesh {tuple(sizes)} should not be bigger than the {world} processes of the group"
        raise run.error("RuntimeError", message, call.node, call.scope)
    if isinstance(world, int) and 0 < math.prod(sizes) < world:
        message = f"list index out of range, in the processes that mesh {tuple(sizes)} leaves out of {world}"
        raise run.error("IndexError", message, call.node, call.scope)
    named = names if isinstance(names, (list, tuple)) else ()
    return Mesh(sizes=tuple(sizes), names=tuple(str(name) for name in named))


def megatron_groups(call: LibraryCall, run: ProgramWalk) -> Value:
    """`initialize_model_parallel`, which refuses sizes that do not divide the number of processes."""
    world = run.world_size()
    tensor, pipeline, context, expert = (
        _size(call, f"{name}_parallel_size")
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    if call.named.get("virtual_pipeline_model_parallel_size") is not None and pipeline == 1:
        message = "pipeline-model-parallel size should be greater than 1 with interleaved schedule"
        raise run.error("RuntimeError", message, call.node, call.scope)
    expert_tensor = _size(call, "expert_tensor_parallel_size", tensor)
    for product, factors in (
        (tensor * pipeline * context, "tensor_model_parallel_size x pipeline_model_parallel_size x context"),
        (
            expert_tensor * expert * pipeline,
            "expert_model_parallel_size x expert_tensor_parallel_size x pipeline",
        ),
    ):
        if isinstance(world, int) and product and world % product:
            message = f"world size ({world}) is not divisible by {factors} parallel sizes ({product})"
            raise run.error("RuntimeError", message, call.node, call.scope)
    if isinstance(world, int) and tensor * pipeline * context:
        run.surroundings.data_parallel = world // (tensor * pipeline * context)
    return None


def _size(call: LibraryCall, name: str, default: int = 1) -> int:
    """A parallel size; 0 if it is not known, `default` if it is not given."""
    value = call.named.get(name, default)
    value = default if value is None else value
    return value if isinstance(value, int) else 0
