"""Which rows of a batch verl's controller gives to each rank, and in which order it joins what they return.

The worker group, its methods and the split of a batch are verl's; the modes are those with which verl's
worker registers its methods. The ranks are objects in this process, called as Ray calls actors. They do not
compute: each notes the rows that it got, and returns rows of a batch that was made before. Every comparison
is exact, and the device has no part in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.verl_workers import Tensors
from harness.numerics.update.replaced import replaced
from harness.numerics.update.trainer_glue import balance_batch, trainer_method
from harness.numerics.update.update_cases import GROUP, ROWS, UpdateCase
from harness.numerics.update.update_record import STEP

UTILITIES = "verl.utils.tensordict_utils"
DECORATOR, CONTROLLER = "verl.single_controller.base.decorator", "verl.single_controller.ray.base"
LEGACY_WORKERS, ENGINE_WORKERS = "verl.workers.fsdp_workers", "verl.workers.engine_workers"
INFERENCE = ("compute_log_prob", "compute_ref_log_prob")
METHODS = (*INFERENCE, "update_actor")
"""Methods of the workers that the trainer calls with a batch."""

OWN_MESHES, OTHER_MESHES = ("actor", "ref", "train"), ("rollout", "critic", "reward")
"""Names of the meshes of ranks. The layout is that of the first ones. In the others, the ranks have the rows
in reverse order, so that a method with the mesh of another worker is seen."""

ROW_NUMBER = "dispatched_row"
"""The number of each row, which is no tensor: it makes every row another one."""


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """Ranks of a job. data_ranks: the data-parallel rank of each, whose rows it gets. returning: whether the
    controller takes what it returns."""

    name: str
    data_ranks: tuple[int, ...]
    returning: tuple[bool, ...]

    def rows(self) -> NDArray[np.int64]:
        """The rows that each rank gets, (ranks, rows of a data-parallel rank)."""
        parts = np.arange(ROWS).reshape(max(self.data_ranks) + 1, -1)
        return np.asarray(parts[list(self.data_ranks)])

    def named(self, quantity: str, method: str = "") -> str:
        """The name of a quantity in the record."""
        return f"{quantity}{method and ' of '}{method}, {self.name}"

    def expected(self) -> dict[str, NDArray[np.int64]]:
        """The quantities of all methods by definition, in the order of computation."""
        found: dict[str, NDArray[np.int64]] = {self.named("rows after balancing"): np.arange(ROWS)}
        for method in METHODS:
            found[self.named("rows for ranks", method)] = self.rows()
            found[self.named("settings for ranks", method)] = np.ones(len(self.data_ranks), dtype=np.int64)
            if method in INFERENCE:
                found[self.named("rows from ranks", method)] = np.arange(ROWS)
        return found


LAYOUTS = (
    RankLayout(name="4 ranks", data_ranks=(0, 1, 2, 3), returning=(True,) * 4),
    RankLayout(name="2 ranks", data_ranks=(0, 1), returning=(True,) * 2),
    RankLayout(
        name="2 pairs that divide tokens", data_ranks=(0, 0, 1, 1), returning=(True, False, True, False)
    ),
    RankLayout(name="2 stages of 2 ranks", data_ranks=(0, 1, 0, 1), returning=(False, False, True, True)),
)
"""Only data-parallel, with two or four rows for each rank; with Ulysses, where neighbours have the same rows;
and with a pipeline, whose last stage returns results."""

SPLIT, JOINED, SETTINGS_JOINED, METRICS_JOINED, NESTED_SPLIT, NESTED_JOINED, REPEATED, FILLED, CUT = (
    "rows of parts",
    "rows joined",
    "settings joined",
    "metrics joined",
    "rows of nested parts",
    "rows joined, nested",
    "rows repeated",
    "rows filled up",
    "rows filled up and cut",
)
"""A batch without ranks: split into four parts, joined again, each row repeated for the outputs of its
prompt, and filled up with any rows to a number that can be divided, and cut again."""

SETTING, METRIC = "setting", "mfu"
"""What every part of a padded batch has besides rows: the same setting, and a metric of its own."""

PARTS = 4
DIVISORS = (ROWS // 2, 3, 2 * ROWS + 4)
"""One of them divides the rows, one needs a row more, and one more than once all rows."""


def dispatched_rows(*, legacy: bool) -> dict[str, NDArray[np.int64]]:
    """All quantities by definition, in the order of computation. legacy: the workers get padded batches."""
    every, parts = np.arange(ROWS), np.arange(ROWS).reshape(PARTS, -1)
    found = {
        SPLIT: parts,
        JOINED: every,
        SETTINGS_JOINED: np.array(1),
        METRICS_JOINED: np.arange(0, ROWS, ROWS // PARTS),
        **({} if legacy else {NESTED_SPLIT: parts, NESTED_JOINED: every}),
        REPEATED: np.repeat(np.arange(ROWS), GROUP),
        FILLED: np.concatenate([_filled(-(-ROWS // one) * one) for one in DIVISORS]),
        CUT: np.tile(every, len(DIVISORS)),
    }
    for layout in LAYOUTS:
        found |= layout.expected()
    return found


def _filled(number: int) -> NDArray[np.int64]:
    """Rows of a batch that is filled up: `ROWS` stands for any of them."""
    return np.minimum(np.arange(number), ROWS)


def _any_row(place: int, row: int) -> int:
    """The row at a place of a batch that is filled up, `ROWS` for any row after the last one."""
    return ROWS if place >= ROWS and row >= 0 else row


def rows_of(data: Any) -> list[dict[str, object]]:
    """The fields of each row of a DataProto or TensorDict, in a form that can be compared."""
    if hasattr(data, "non_tensor_batch"):
        columns: dict[str, Sequence[object]] = {**data.non_tensor_batch}
        tensors: Tensors = {} if data.batch is None else dict(data.batch.items())
    else:
        columns, tensors = {}, dict(data.items())
    is_tensor = import_module("torch").is_tensor
    for name, value in tensors.items():
        if is_tensor(value):
            columns[name] = [_comparable(row) for row in value.unbind()]
        elif _is_stack(value):
            # Other data is one value for all rows, which is a setting.
            columns[name] = value.tolist()
    rows = itertools.zip_longest(*columns.values())
    return [dict(zip(columns, row, strict=True)) for row in rows]


def settings_of(data: Any) -> dict[str, object]:
    """What a batch has besides rows."""
    if hasattr(data, "meta_info"):
        return dict(data.meta_info)
    kind: Any = import_module("tensordict").NonTensorData
    return {name: one.data for name, one in data.items() if isinstance(one, kind) and not _is_stack(one)}


def _is_stack(value: Any) -> bool:
    return isinstance(value, import_module("tensordict").NonTensorStack)


def _comparable(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    return str(tensor.dtype), tuple(tensor.shape), tensor.cpu().contiguous().numpy().tobytes()


def found_rows(part: Any, whole: Sequence[Mapping[str, object]]) -> list[int]:
    """Which row of the whole each row of a part is; -1 for one that the whole does not have."""
    places = {tuple(sorted(row.items())): place for place, row in enumerate(whole)}
    return [places.get(tuple(sorted(row.items())), -1) for row in rows_of(part)]


@dataclass
class RankDispatch:
    """Sends a batch to ranks and back with verl's functions.

    padded: the batch of a trainer, a DataProto. data: the batch as the trainer passes it to a group of
    workers. note, at: record quantities, and which function of verl computes them. blame: names a function
    that did not return what it is defined to return.
    """

    torch: Any
    case: UpdateCase
    padded: Any
    data: Any
    note: Callable[[str, Any], None]
    at: Callable[..., None]
    blame: Callable[[Any], None]
    got: dict[int, Any] = field(default_factory=dict, init=False)

    @property
    def legacy(self) -> bool:
        """Whether the workers get a DataProto."""
        return self.data is self.padded

    def run(self) -> None:
        """Record all quantities."""
        self._split_and_join()
        self._repeat_and_pad()
        module: Any = import_module(LEGACY_WORKERS if self.legacy else ENGINE_WORKERS)
        worker = module.ActorRolloutRefWorker
        self.at(import_module(DECORATOR).register, STEP)
        for layout in LAYOUTS:
            with self._group(layout, worker) as group:
                self._balanced(layout, group)
                for method in METHODS:
                    self._locate(layout, method, worker)
                    self._called(layout, method, group)

    def _split_and_join(self) -> None:
        """Record the rows of parts of a batch, and of these joined."""
        batch: Any = type(self.padded)
        kinds = [(self.padded, batch.chunk, batch.concat, SPLIT, JOINED)]
        if not self.legacy:
            nested: Any = import_module(UTILITIES)
            functions = (nested.chunk_tensordict, nested.concat_tensordict)
            kinds.append((self.data, *functions, NESTED_SPLIT, NESTED_JOINED))
        for data, split, join, parts_name, whole_name in kinds:
            self.at(split, parts_name, STEP)
            parts = [found_rows(part, rows_of(data)) for part in split(data, PARTS)]
            self.note(parts_name, _even(parts))
            self.at(join, whole_name, STEP)
            padded = data is self.padded
            joined = join([self._output(range(at, at + 2), padded=padded) for at in range(0, ROWS, 2)])
            whole = rows_of(self._output(range(ROWS), padded=padded))
            self.note(whole_name, np.array(found_rows(joined, whole)))
            if padded:
                self.at(join, SETTINGS_JOINED, METRICS_JOINED)
                settings = settings_of(joined)
                self.note(SETTINGS_JOINED, np.int64(settings.get(SETTING) == SETTING))
                metrics = settings.get("metrics")
                found = metrics.get(METRIC, []) if isinstance(metrics, dict) else []
                self.note(METRICS_JOINED, np.sort(np.ravel(found)))

    def _repeat_and_pad(self) -> None:
        """Record the rows of a batch with several outputs for each prompt, and of one that is made divisible
        for a pass and cut afterwards."""
        protocol: Any = import_module("verl.protocol")
        batch, whole = self.padded, rows_of(self.padded)
        self.at(type(batch).repeat, REPEATED, STEP)
        repeated = batch.repeat(repeat_times=GROUP, interleave=True)
        self.note(REPEATED, np.array(found_rows(repeated, whole)))
        pad, cut = protocol.pad_dataproto_to_divisor, protocol.unpad_dataproto
        self.at(pad, FILLED, STEP)
        filled = [pad(batch, divisor) for divisor in DIVISORS]
        found = [found_rows(one, whole) for one, _ in filled]
        self.note(FILLED, [_any_row(at, row) for one in found for at, row in enumerate(one)])
        self.at(cut, CUT, STEP)
        self.note(CUT, [row for one, added in filled for row in found_rows(cut(one, added), whole)])

    def _balanced(self, layout: RankLayout, group: Any) -> None:
        """Record the rows of a batch that the trainer has reordered so that ranks have as many tokens: each
        is there once, and whole."""
        method = trainer_method(nested=False, name="_balance_batch")
        if method is None:
            # Every release has it, so a quantity that was not computed is a capability that was lost.
            return
        self.at(method, layout.named("rows after balancing"), STEP)
        batch = type(self.padded)(
            batch=self.padded.batch.clone(),
            non_tensor_batch=dict(self.padded.non_tensor_batch),
            meta_info=dict(self.padded.meta_info),
        )
        balance_batch(self.case, group, batch)
        found = found_rows(batch, rows_of(self.padded))
        self.note(layout.named("rows after balancing"), np.sort(found))

    def _locate(self, layout: RankLayout, method: str, worker: Any) -> None:
        """Name the functions that compute the quantities of a method."""
        decorator: Any = import_module(DECORATOR)
        mode = getattr(getattr(worker, method), decorator.MAGIC_ATTR)["dispatch_mode"]
        functions = mode if isinstance(mode, Mapping) else decorator.get_predefined_dispatch_fn(mode)
        give, take = (
            getattr(one, "func", one) for one in (functions["dispatch_fn"], functions["collect_fn"])
        )
        self.at(give, *(layout.named(f"{one} for ranks", method) for one in ("rows", "settings")))
        self.at(take, layout.named("rows from ranks", method))

    def _called(self, layout: RankLayout, method: str, group: Any) -> None:
        """Call a method of the group, and record what the ranks got and the trainer gets."""
        whole, settings = rows_of(self.data), settings_of(self.data)
        with _watched(layout, whole, self.blame) as given:
            returned = getattr(group, method)(self.data)
            if hasattr(returned, "futures"):
                # A method that is not waited for.
                returned = returned.get()
        parts = [self.got.get(rank) for rank in range(len(layout.data_ranks))]
        rows = _even([[] if one is None else found_rows(one, whole) for one in parts])
        if given and not np.array_equal(rows, layout.rows()):
            self.blame(type(group).execute_all_async)
        self.note(layout.named("rows for ranks", method), rows)
        same = [one is not None and settings_of(one) == settings for one in parts]
        self.note(layout.named("settings for ranks", method), np.array(same, dtype=np.int64))
        if method in INFERENCE:
            found = found_rows(returned, rows_of(self._output(range(ROWS))))
            self.note(layout.named("rows from ranks", method), np.array(found))
        self.got.clear()

    @contextmanager
    def _group(self, layout: RankLayout, worker: Any) -> Iterator[Any]:
        """verl's group of workers, attached to ranks of this process."""
        controller: Any = import_module(CONTROLLER)
        ray: Any = import_module("ray")
        kind = self._rank_class(worker)
        size = len(layout.data_ranks)
        with ExitStack() as stack:
            stack.enter_context(replaced(ray, "ObjectRef", _Reference))
            stack.enter_context(replaced(ray, "put", lambda value, **_: _Reference(value)))
            stack.enter_context(replaced(ray, "get", _got))
            ranks = [_registered(kind, layout, rank) for rank in range(size)]
            yield controller.RayWorkerGroup(
                resource_pool=None,
                ray_cls_with_init=controller.RayClassWithInitArgs(cls=kind),
                worker_names=[f"rank {rank}" for rank in range(size)],
                worker_handles=[_Actor(one) for one in ranks],
            )

    def _rank_class(self, worker: Any) -> Any:
        """A worker whose methods are registered as verl's are, and compute nothing."""
        decorator: Any = import_module(DECORATOR)
        base: Any = import_module("verl.single_controller.base").Worker

        def registered(name: str) -> Any:
            def method(rank: Any, data: Any) -> Any:
                return self._on_rank(rank, name, data)

            attributes = getattr(getattr(worker, name), decorator.MAGIC_ATTR)
            return decorator.register(**attributes)(method)

        return type("Rank", (base,), {name: registered(name) for name in METHODS})

    def _on_rank(self, rank: Any, method: str, data: Any) -> Any:
        """What a rank does: note what it got, and return rows of the output, or metrics."""
        self.got[rank.rank] = data
        if not rank.returns and not self.legacy:
            return None
        rows = [max(row, 0) for row in found_rows(data, rows_of(self.data))] if method in INFERENCE else []
        return self._output(rows)

    def _output(self, rows: Sequence[int], *, padded: bool | None = None) -> Any:
        """Rows of what the workers compute, in a batch of the kind that they return."""
        torch = self.torch
        lengths = [3 + row % 4 for row in range(ROWS)]
        values = [torch.arange(length) + 100.0 * row for row, length in enumerate(lengths)]
        if self.legacy if padded is None else padded:
            own = torch.stack([one[:3] for one in values])[list(rows)]
            tensors = {"old_log_probs": own, "entropys": -own} if len(rows) else {}
            return type(self.padded).from_single_dict(
                tensors, meta_info={SETTING: SETTING, "metrics": {METRIC: [float(min(rows, default=0))]}}
            )
        own = [values[row] for row in rows]
        fields = {
            name: torch.nested.as_nested_tensor([sign * one for one in own], layout=torch.jagged)
            for name, sign in (("log_probs", 1.0), ("entropy", -1.0))
            if own
        }
        utilities: Any = import_module(UTILITIES)
        return utilities.get_tensordict(tensor_dict=fields, non_tensor_dict={"metrics": {METRIC: 0.0}})


@contextmanager
def _watched(
    layout: RankLayout, whole: Sequence[Mapping[str, object]], blame: Callable[[Any], None]
) -> Iterator[list[bool]]:
    """In the block, the functions of verl that give parts to ranks and choose what they return are blamed if
    they got what they should and returned something else. In the list afterwards: one entry if each rank was
    given its rows."""
    decorator: Any = import_module(DECORATOR)
    given: list[bool] = []
    give: Any = getattr(decorator, "dispatch_nd_compute", None)
    choose: Any = getattr(decorator, "collect_nd_compute", None)

    def giving(data_ranks: Sequence[int], *others: Any) -> Any:
        found, parts = give(data_ranks, *others), others[-1]
        rows = [found_rows(_plain(one), whole) for of_ranks in found[0] for one in of_ranks]
        if np.array_equal(_even(rows), layout.rows()):
            given.append(True)
        is_split = [row for one in parts for row in found_rows(one, whole)] == list(range(ROWS))
        if not given and is_split and tuple(data_ranks) == layout.data_ranks:
            blame(give)
        return found

    def choosing(returning: Sequence[bool], *others: Any) -> Any:
        found, outputs = choose(returning, *others), others[-1]
        wanted = [one for one, is_taken in zip(outputs, layout.returning, strict=True) if is_taken]
        if tuple(returning) == layout.returning and [*map(id, found)] != [*map(id, wanted)]:
            blame(choose)
        return found

    with ExitStack() as stack:
        for name, function, own in (
            ("dispatch_nd_compute", give, giving),
            ("collect_nd_compute", choose, choosing),
        ):
            if function is not None:
                stack.enter_context(replaced(decorator, name, own))
        yield given


@dataclass(frozen=True)
class _Reference:
    """A reference of Ray to an object, which is there already."""

    value: Any


def _got(references: Any, **_: Any) -> Any:
    """`ray.get`: an object, or those of a list of references."""
    return [one.value for one in references] if isinstance(references, list) else references.value


def _plain(given: Any) -> Any:
    return given.value if isinstance(given, _Reference) else given


class _Actor:
    """A handle of Ray: each method has `remote`. The call runs at once, with objects in the place of
    references."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any, **named: Any) -> _Reference:
            arguments = {key: _plain(value) for key, value in named.items()}
            return _Reference(getattr(self._rank, name)(*map(_plain, given), **arguments))

        return SimpleNamespace(remote=remote)


def _registered(kind: Any, layout: RankLayout, rank: int) -> Any:
    """A rank that has told its place in all meshes."""
    size = len(layout.data_ranks)
    environment = {
        "WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
    }
    with mock.patch.dict("os.environ", environment):
        one = kind()
    one.returns = layout.returning[rank]
    for mesh in OWN_MESHES:
        one._register_dispatch_collect_info(  # noqa: SLF001 - verl's name
            mesh, dp_rank=layout.data_ranks[rank], is_collect=layout.returning[rank]
        )
    for mesh in OTHER_MESHES:
        one._register_dispatch_collect_info(mesh, dp_rank=size - 1 - rank, is_collect=True)  # noqa: SLF001
    return one


def _even(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Rows of ranks as an array, -1 after the last one of a rank with fewer."""
    longest = max(map(len, rows), default=0)
    return np.array([[*one, *[-1] * (longest - len(one))] for one in rows], dtype=np.int64)
