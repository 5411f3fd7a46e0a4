"""Followed programs raise what real Python raises, and nothing where a value is not known."""

from __future__ import annotations

import ast
import sys
import types
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from harness.compat.lint.dry_run.program_walk import Surroundings
from harness.compat.lint.dry_run.started_program import ProgramChecks, follow_program
from harness.compat.lint.module_files import ModuleFiles

HEAD = """\
import collections.abc, enum, functools, os
from dataclasses import dataclass, field
import hydra
from omegaconf import OmegaConf, DictConfig
@dataclass
class Base(collections.abc.Mapping):
    _mutable = {"size"}
    def __setattr__(self, name, value):
        if name in self.__dict__ and name not in self._mutable:
            raise AttributeError(f"{name} is frozen")
        super().__setattr__(name, value)
    def get(self, key, default=None):
        try:
            return getattr(self, key)
        except AttributeError:
            return default
    def __getitem__(self, key): return getattr(self, key)
    def __iter__(self): return iter(())
    def __len__(self): return 1
@dataclass
class Actor(Base):
    size: int = 1
    mode: str = "mean"
    more: dict = field(default_factory=dict)
    def __post_init__(self):
        if self.mode not in ["mean", "sum"]:
            raise ValueError(f"wrong mode {self.mode}")
    def validate(self, cards):
        assert self.size % cards == 0, f"{self.size} % {cards}"
class Role(enum.Enum):
    A = "a"
    B = "b"
    def __str__(self): return "role" + self.value
REGISTRY = {}
def register(name):
    def decorator(f):
        REGISTRY[name] = f
        return f
    return decorator
@register("one")
def first(x): return x + 1
"""
MAIN = "@hydra.main(config_path=None, config_name=None, version_base=None)\ndef main(c):\n"
CONFIG = {
    "n": 8,
    "tp": 2,
    "batch": 64,
    "mode": "mean",
    "none": None,
    "list": [1, 2],
    "inner": {"a": 1, "x": 2.5},
}


def follow(body: str, config: Mapping[str, Any]) -> ProgramChecks:
    source = HEAD + MAIN + "".join(f"    {line}\n" for line in body.splitlines())
    files = {"verl/main.py": source}
    return follow_program(
        "verl/main.py",
        config,
        ModuleFiles(frozenset(files)),
        lambda path: ast.parse(files[path]),
        Surroundings(device="npu"),
    )


def real_error(body: str, config: Mapping[str, Any]) -> str:
    source = HEAD + MAIN + "".join(f"    {line}\n" for line in body.splitlines())
    namespace: dict[str, Any] = {"__name__": "verl_main"}
    code = compile(source, "verl/main.py", "exec")
    sys.modules["verl_main"] = types.ModuleType("verl_main")
    try:
        exec(code, namespace)
        made = OmegaConf.create(dict(config))
        OmegaConf.set_struct(made, True)
        namespace["main"].__wrapped__(made)
    except Exception as error:  # noqa: BLE001 - any is expected
        return type(error).__name__
    finally:
        del sys.modules["verl_main"]
    return ""


BODIES = [
    "assert c.n % c.tp == 0",
    "assert c.n % (c.tp * 3) == 0, 'no'",
    "if c.n > 4 and c.batch // c.n < 9: raise ValueError('few')",
    "a = Actor(size=c.batch, mode=c.mode); a.validate(c.n * c.tp)",
    "a = Actor(size=c.batch, mode=c.mode); a.validate(7)",
    "Actor(size=1, mode='max')",
    "Actor(length=1)",
    "a = Actor(); a.mode = 'sum'",
    "a = Actor(); a.size = 5; assert a.size == 5 and a['size'] == 5 and a.get('q', 3) == 3",
    "a = Actor(**c.inner)",
    "x = c.none * 2",
    "x = c.n + c.mode",
    "x = c.missing",
    "x = c.get('missing', 4); assert x == 4 and 'n' in c and 'q' not in c",
    "assert getattr(c, 'q', 5) == 5 and hasattr(c, 'n')",
    "REGISTRY['two'](1)",
    "assert REGISTRY['one'](c.n) == 9",
    "try:\n    raise KeyError('x')\nexcept KeyError:\n    y = 1\nassert y == 1",
    "try:\n    c.missing\nexcept (AttributeError, TypeError):\n    y = 1\nelse:\n    y = 2\nassert y == 1",
    "t = 0\nfor i, v in enumerate(c.list):\n    if v == 2:\n        break\n    t += v\nelse:\n    t = 9\nassert t == 1 and i == 1",
    "i = 0\nwhile True:\n    i += 1\n    if i > 1: break\nassert i == 2",
    "d = {Role.A: 1}; d[Role.B] = 2; assert Role.B in d and str(Role.A) == 'rolea' and Role('b') is Role.B",
    "f = functools.partial(first, x=c.n); assert f() == 9",
    "assert [v * 2 for v in c.list if v > 1] == [4] and {k: v for k, v in c.inner.items()}['a'] == 1",
    "assert f'{c.n}-{c.mode}' == '8-mean' and ','.join(str(v) for v in c.list) == '1,2'",
    "def inner(*a, k=2, **kw): return len(a) + k + len(kw)\nassert inner(1, 2, z=3) == 5",
    "c.n = 3\nassert c.n == 3",
    "x, *y = [1, 2, 3]; assert max(c.list) == 2 and sum(c.list) == 3 and (c.n if c.tp else 0) == 8",
    "assert isinstance(c, DictConfig) and isinstance(c.n, int) and not isinstance(c.mode, int | float)",
    "assert OmegaConf.select(c, 'inner.x') == 2.5 and OmegaConf.to_container(c)['inner'] == {'a': 1, 'x': 2.5}",
    "m = OmegaConf.merge(OmegaConf.create({'a': 1, 'b': 2}), c.inner); assert m.b == 2 and m.x == 2.5",
    "int(c.mode)",
    "x = c.n / (c.tp - 2)",
    "c.list[5]",
    "def f():\n    nonlocal_x = 1\n    return nonlocal_x\nif f() != 1 or (z := c.n) != 8: raise RuntimeError('x')",
]


@pytest.mark.parametrize("body", BODIES)
def test_a_program_raises_what_python_raises(body: str) -> None:
    checks = follow(body, CONFIG)
    real = real_error(body, CONFIG)
    followed = [error.type for error in checks.failed]
    assert bool(followed) == bool(real), (followed, real)
    assert not real or real in followed[0] or followed[0] in real or real == "MissingMandatoryValue"
    assert checks.complete


numbers = st.integers(-3, 9)
sums = st.recursive(
    st.one_of(numbers.map(str), st.sampled_from(["c.n", "c.tp", "c.batch", "c.inner.a"])),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=6,
)
checks_of_sums = st.tuples(sums, st.sampled_from(["==", "!=", "<", ">=", "in"]), sums).map(
    lambda parts: f"{parts[0]} {parts[1]} {f'[{parts[2]}, 3]' if parts[1] == 'in' else parts[2]}"
)
conditions = st.recursive(
    checks_of_sums,
    lambda inner: st.one_of(
        inner.map(lambda text: f"not ({text})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(first=conditions, second=conditions, value=sums)
def test_any_arithmetic_is_pythons(first: str, second: str, value: str) -> None:
    body = f"x = {value}\nif {first}:\n    assert {second}, 'm'\nelse:\n    x = 2 * x\nassert x != 4"
    checks, real = follow(body, CONFIG), real_error(body, CONFIG)
    assert (checks.failed[0].type if checks.failed else "") == real


IN_ONE_BRANCH = "if c.n > 2:\n    x = f()\nelse:\n    raise ValueError('x')\nassert x == 1"
UNKNOWN = {**CONFIG, "n": "value_of_the_run_NODES"}


@pytest.mark.parametrize(
    ("body", "fails", "open_values"),
    [
        ("assert c.n % c.tp == 0", False, {"NODES"}),
        ("assert c.n > 2 and c.tp == 3", True, set()),
        ("assert c.n > 2 or c.tp == 2", False, set()),
        ("if c.n > 2: raise ValueError('x')", False, {"NODES"}),
        ("if c.n > 2:\n    y = 1\nelse:\n    y = 1\nassert y == 2", True, set()),
        ("if c.n > 2:\n    y = 1\nelse:\n    y = 2\nassert y == 2", False, {"NODES"}),
        ("def f():\n    if c.n > 2: return 1\n    return 1\nassert f() == 2", True, set()),
        ("def f():\n    if c.n > 2: return\n    raise ValueError('x')\nf()", False, {"NODES"}),
        ("if c.n > 2: raise ValueError('x')\nassert c.tp == 3", True, {"NODES"}),
        ("d = {}\nif c.n > 2: d['a'] = 1\nassert 'a' in d", False, {"NODES"}),
        ("l = []\nif c.n > 2: l.append(1)\nassert len(l) == 1", False, set()),
        ("d = {}\nfor i in range(c.n): d[i] = 1\nassert d and len(d) > 0 and c.tp", False, set()),
        ("for i in range(c.n): raise ValueError('x')", False, {"NODES"}),
        ("x = os.environ.get('Q', '3')\nassert x == '3'", False, set()),
        ("import torch\nx = torch.f(c)\nassert x.shape[0] == c.tp", False, set()),
        ("a = Actor(size=c.n)\nassert a.size == 2\nassert a.mode == 'sum'", True, {"NODES"}),
        ("if c.n > 2:\n    raise ValueError('x')\nelse:\n    raise KeyError('x')", True, {"NODES"}),
        ("while c.n > 2: raise ValueError('x')", False, {"NODES"}),
        ("d = {'a': 1}\nif c.n > 2: del d['a']\nassert 'a' in d", False, {"NODES"}),
        ("d = {'a': 1}\nif c.n > 2: d.pop('a')\nelse: del d['a']\nassert 'a' in d", True, set()),
        # A function that is called in a branch has branches itself.
        (
            "def f():\n    y = 1\n    if c.n > 3: y = 2\n    return y\n" + IN_ONE_BRANCH,
            False,
            {"NODES"},
        ),
        (
            "def f():\n    y = 1\n    y += c.tp\n    return y\n" + IN_ONE_BRANCH,
            True,
            {"NODES"},
        ),
        # A function that calls itself with the same arguments is followed once.
        ("def f(x):\n    if x > 2: f(x), f(x), f(x)\nf(c.n)\nassert c.tp == 3", True, set()),
    ],
)
def test_what_is_not_known_is_no_failure_and_is_told(body: str, fails: bool, open_values: set[str]) -> None:
    checks = follow(body, UNKNOWN)
    assert bool(checks.failed) == fails, checks.failed
    assert {name for check in checks.open for name in check.sources} == open_values


def test_a_failure_names_its_line_its_message_and_the_keys_behind_it() -> None:
    body = "cards = c.n * c.tp\nother = c.inner.a\nif other: pass\nassert c.batch % (cards + 1) == 0, f'{c.batch} % {cards}'"
    (error,) = follow(body, CONFIG).failed
    assert (error.type, error.message) == ("AssertionError", "64 % 16")
    assert error.place.path == "verl/main.py"
    assert error.place.line == HEAD.count("\n") + 2 + 4
    assert {"n", "tp", "batch"} <= error.keys
    assert "inner.a" not in error.keys


@pytest.mark.parametrize(
    ("items", "fails"),
    [("c.list", True), ("unknown()", False), ("[unknown(), 3]", False)],
)
def test_an_error_behind_a_search_whose_result_is_not_known_is_no_failure(items: str, fails: bool) -> None:
    body = f"def f():\n    for x in {items}:\n        if x == c.n: return x\n    raise ValueError(c.tp)\nf()"
    head = "from other import unknown\n"
    assert bool(follow(head + body, CONFIG).failed) is fails


def test_several_checks_that_fail_are_all_found() -> None:
    checks = follow("assert c.n == 1\nif c.tp > 1: raise ValueError('tp')\nassert c.batch == 64", CONFIG)
    assert [error.type for error in checks.failed] == ["AssertionError", "ValueError"]


@pytest.mark.parametrize(
    "body",
    [
        "def f(n): return f(n + 1)\nf(0)",
        "while True: pass",
        "x = 'a'\nfor i in range(100): x = x + x",
        "x = 2\nfor i in range(100): x = x ** x",
        "for i in range(10 ** 9): pass",
        "x = " + "(" * 150 + "1" + ")" * 150,
    ],
)
def test_a_program_without_an_end_is_left(body: str) -> None:
    assert not follow(body, CONFIG).failed


CLUSTER = {
    "verl/single_controller/ray/base.py": """\
class Pool:
    def __init__(self, counts): self.store = counts
    @property
    def world_size(self): return sum(self.store)
class RayClassWithInitArgs:
    def __init__(self, cls, *args, **kwargs): self.cls, self.args, self.kwargs = cls, args, kwargs
def create_colocated_worker_cls(class_dict): raise NotImplementedError
class RayWorkerGroup: pass
""",
    "verl/registry.py": "ENGINES = {}\ndef register(name):\n    def add(cls):\n        ENGINES[name] = cls\n        return cls\n    return add\n",
    "verl/engines/__init__.py": "from .fsdp import Engine\n",
    "verl/engines/fsdp.py": "from verl.registry import register\n@register('fsdp')\nclass Engine: pass\n",
    "verl/worker.py": """\
import os, ray, torch
from torch.distributed.device_mesh import init_device_mesh
from megatron.core import parallel_state as mpu
from transformers import AutoConfig, AutoModel
import verl.engines
from verl.registry import ENGINES
class Worker:
    def __init__(self, config):
        self.config, self.world_size = config, int(os.environ["WORLD_SIZE"])
        assert self.world_size == torch.distributed.get_world_size()
        if config.strategy not in ENGINES: raise ValueError(f"no engine {config.strategy}")
        mesh = init_device_mesh("npu", mesh_shape=(self.world_size // config.sp, config.sp), mesh_dim_names=["dp", "sp"])
        assert mesh.size() == self.world_size and mesh["sp"].size() == config.sp, "mesh"
    def init_model(self):
        model = AutoModel.from_pretrained("x", config=AutoConfig.from_pretrained("x"))
        assert model.config.num_attention_heads % self.config.sp == 0, "heads"
        mpu.initialize_model_parallel(tensor_model_parallel_size=self.config.tp, pipeline_model_parallel_size=2)
""",
    "verl/main.py": """\
import hydra, ray
from verl.single_controller.ray.base import Pool, RayClassWithInitArgs, RayWorkerGroup, create_colocated_worker_cls
from verl.worker import Worker
@ray.remote
class Runner:
    def run(self, config):
        pool = Pool([config.cards] * config.nodes)
        classes = {"actor": RayClassWithInitArgs(cls=ray.remote(Worker), config=config)}
        group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=create_colocated_worker_cls(class_dict=classes))
        group.spawn(prefix_set=classes.keys())["actor"].init_model()
@hydra.main(config_path=None, config_name="x", version_base=None)
def main(config):
    ray.get(Runner.options(name="r").remote().run.remote(config))
""",
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"sp": 3}, "in the processes that mesh (2, 3) leaves out of 8"),
        ({"sp": 16}, "mesh (0, 16) has no place for a process"),
        ({"strategy": "fdsp"}, "no engine fdsp"),
        ({"tp": 3}, "world size (8) is not divisible"),
        ({"nodes": 3}, ""),
        ({"nodes": 3, "tp": 8}, "world size (24) is not divisible"),
        ({"cards": 14, "sp": 7}, "heads"),
        ({"cards": "value_of_the_run_CARDS", "tp": 3}, ""),
    ],
)
def test_workers_are_followed_with_the_size_of_their_pool(changed: Mapping[str, Any], message: str) -> None:
    config = {"cards": 8, "nodes": 1, "sp": 2, "tp": 2, "strategy": "fsdp", **changed}
    checks = follow_program(
        "verl/main.py",
        config,
        ModuleFiles(frozenset(CLUSTER)),
        lambda path: ast.parse(CLUSTER[path]),
        Surroundings(device="npu", model={"num_attention_heads": 32}),
    )
    messages = [error.message for error in checks.failed]
    assert bool(messages) == bool(message), messages
    assert message in " ".join(messages)
    if message.startswith("world size"):
        assert {"cards", "nodes", "tp"} <= checks.failed[0].keys


@pytest.mark.parametrize(
    ("body", "fails"),
    [
        # A data loader and epochs after those of an earlier run have a first round.
        ("from torch.utils.data import DataLoader\nfor b in DataLoader(None):\n    assert c.tp == 3", True),
        (
            "from torch.utils.data import DataLoader\nfor i, b in enumerate(DataLoader(None)):\n    assert c.tp == 3",
            True,
        ),
        ("for e in range(os.cpu_count(), c.n):\n    assert c.tp == 3", True),
        ("s = os.cpu_count()\nwhile s < c.n:\n    s += 1\n    assert c.tp == 3", True),
        ("s = os.cpu_count()\nwhile s < c.n:\n    s += 1\n    assert c.tp == 2", False),
        # What a round changes is not known afterwards.
        (
            "l = []\nfrom torch.utils.data import DataLoader\nfor b in DataLoader(None): l.append(b)\nassert len(l) == c.n",
            False,
        ),
        # Other loops may have none.
        ("for name in os.listdir(c.mode):\n    assert c.tp == 3", False),
        # A loader reads elements of its data set.
        (
            (
                "from torch.utils.data import DataLoader\nclass Data:\n    def __getitem__(self, i):\n"
                "        assert c.mode in ['left', 'right']\nDataLoader(dataset=Data())"
            ),
            True,
        ),
        # What a loop waits for comes; without an end nothing follows.
        ("def f():\n    while True:\n        if os.listdir('.'): return 1\nf()\nassert c.tp == 3", True),
        ("while True: os.listdir('.')\nassert c.tp == 3", False),
        # A failure of something that only a run has does not hide those of settings.
        ("x = [][0]\nassert c.tp == 3", True),
        ("import heapq\nh = []\nheapq.heappush(h, c.n)\ny = h[0]\nassert c.tp == 2", False),
        # A process has a group after it was made.
        ("import torch.distributed as d\nif not d.is_initialized():\n    assert c.tp == 3", True),
        (
            "import torch.distributed as d\nd.init_process_group()\nif not d.is_initialized():\n    assert c.tp == 3",
            False,
        ),
        # Code of the user registers names.
        ("REGISTRY[c.mode]", True),
        (
            (
                "import importlib.util\nspec = importlib.util.spec_from_file_location('m', 'f.py')\n"
                "m = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(m)\nREGISTRY[c.mode]"
            ),
            False,
        ),
    ],
)
def test_a_training_step_is_followed(body: str, fails: bool) -> None:
    failed = [error for error in follow(body, CONFIG).failed if error.keys]
    assert bool(failed) == fails, failed


ACTORS = """\
import ray
class Worker:
    def __init__(self, config, rank):
        assert config.n % 3 == 0, f"no {config.n} of {rank}"
kind = ray.remote(Worker)
"""


@pytest.mark.parametrize(
    ("starts", "messages"),
    [
        ("a = [kind.options(name=str(i)).remote(c, 0) for i in range(4)]", ["no 8 of 0"]),
        ("a = [kind.remote(c, i) for i in range(2)]", ["no 8 of 0", "no 8 of 1"]),
        ("a = kind.remote(c, 0); c.n = 9; b = kind.remote(c, 0)", ["no 8 of 0"]),
        ("a = kind.remote(c, 0); c.n = 10; b = kind.remote(c, 0)", ["no 8 of 0", "no 10 of 0"]),
        ("a = kind.remote(c, True); b = kind.remote(c, 1)", ["no 8 of True", "no 8 of 1"]),
    ],
)
def test_actors_that_get_the_same_are_followed_once(starts: str, messages: list[str]) -> None:
    assert [error.message for error in follow(ACTORS + starts, CONFIG).failed] == messages


ATOMS = [
    "c",
    "c.n",
    "c.mode",
    "c.list",
    "c.inner",
    "c.none",
    "c.absent",
    "c.inner.x",
    "0",
    "1",
    "-3",
    "2.5",
    "'a'",
    '"%s',
    '%d"',
    "None",
    "True",
    "[]",
    "[1,*c.list]",
    "{}",
    "{'a':1,**c.inner}",
    "()",
    "(c.n,)",
    "{1,2}",
    "Actor",
    "Actor()",
    "Actor(size=c.n)",
    "Role",
    "Role.A",
    "Role('b')",
    "REGISTRY",
    "os.environ",
    "os.environ['X']",
    "range(c.n)",
    "lambda:c.n",
    "unknown_name",
    "__import__",
    "type(c)",
    "len",
    "sorted",
    "print",
    "float('nan')",
    "int",
    "1e400",
    "b'x'",
    "...",
    "self",
    "yield",
]
FORMS = [
    *(
        "({} + {})",
        "({} * {})",
        "({} % {})",
        "({} ** {})",
        "({} // {})",
        "({} << {})",
        "({} | {})",
        "-({})",
        "~({})",
    ),
    *("({} < {})", "({} in {})", "({} is {})", "({} and {})", "({} or {})", "not ({})", "({} if {} else {})"),
    *(
        "({})[{}]",
        "({})[{}:{}]",
        "({})({})",
        "({}).get({})",
        "({}).append({})",
        "({}).update({})",
        "({}).pop({})",
    ),
    *(
        "({}).items()",
        "({}).format({})",
        "({}).join({})",
        "({}).name",
        "({}).size",
        "getattr({}, {})",
        "hasattr({}, {})",
    ),
    *(
        "setattr({}, {}, {})",
        "isinstance({}, {})",
        "issubclass({}, {})",
        "len({})",
        "sorted({})",
        "sum({})",
        "max({}, {})",
    ),
    *(
        "int({})",
        "str({})",
        "dict({})",
        "list({})",
        "zip({}, {})",
        "map({}, {})",
        "enumerate({})",
        "range({})",
        "set({})",
    ),
    *(
        "[x for x in {} if {}]",
        "{{x: {} for x in {}}}",
        "f'{{{}}} {{{}!r:>{{{}}}}}'",
        "OmegaConf.select({}, {})",
    ),
    *(
        "OmegaConf.merge({}, {})",
        "OmegaConf.to_container({})",
        "functools.partial({}, {})",
        "field(default={})",
    ),
]
EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.tuples(st.sampled_from(FORMS), inner, inner, inner).map(
        lambda parts: parts[0].format(*parts[1:])
    ),
    max_leaves=6,
)
LINES = [
    *(
        "a = {}",
        "a, *b = {}, {}",
        "a += {}",
        "c.n = {}",
        "c[{}] = {}",
        "del c[{}]",
        "a = b = {}",
        "assert {}, {}",
    ),
    *(
        "if {}: raise ValueError({})",
        "for i in {}: a = {}",
        "while {}: break",
        "raise {}",
        "return {}",
        "global a; a = {}",
    ),
    *(
        "with {} as a: {}",
        "def f(x={}, *y, **z): return {}",
        "class A(Base): x = {}",
        "import verl.{0!r}",
        "{}",
    ),
    *(
        "try: {}\nexcept KeyError as a: {}\nfinally: {}",
        "async def g(): await {}",
        "a = Actor(mode={}, **{})",
    ),
]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(LINES), EXPRESSIONS, EXPRESSIONS, EXPRESSIONS).map(
            lambda parts: parts[0].format(*parts[1:])
        ),
        max_size=6,
    ),
    st.dictionaries(
        st.sampled_from(sorted(CONFIG)),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.sampled_from(["???", "${x}", "value_of_the_run_X"]),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ax"), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    ),
)
@example(lines=["a = (c)[c]", "a = {c: 1}", "a = {x: 1 for x in [c]}", "a = c in {1: 2}"], changed={})
@example(lines=["a = {([],)}", "a = {([],): 1}", "a = c.get(([],))", "a = ([],) in REGISTRY"], changed={})
def test_random_programs_are_followed(lines: list[str], changed: Mapping[str, Any]) -> None:
    kept = []
    for line in lines:
        with warnings.catch_warnings(), suppress(SyntaxError, ValueError):
            warnings.simplefilter("ignore")
            ast.parse("def f():\n" + "".join(f"    {part}\n" for part in line.splitlines()))
            kept.append(line)
    follow("\n".join(kept) or "pass", {**CONFIG, **changed})


def test_nothing_is_said_of_what_is_set_later() -> None:
    body = "class Worker:\n    engine = None\nif hasattr(Worker().engine, 'step'): pass\nelse: raise ValueError(c.n)"
    assert follow(body, CONFIG).failed == ()
