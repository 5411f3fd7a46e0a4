"""Uses followed over random versions of a package give the same answers as a fresh reading of each version."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from source_zip import write_zip

from harness.compat.name_survival.file_index import FileIndex
from harness.compat.name_survival.name_survival import (
    BREAKS,
    GUARDED,
    Answer,
    ConsumerRelease,
    ProviderVersion,
    overridden_methods,
    survival_of_names,
)
from harness.compat.name_survival.tree_surface import TreeSurface
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use_check import check_uses

CONSUMER = """\
import lib
from lib import make, Base
from lib.core import hidden, Model
try:
    from lib.extra import late
except ImportError:
    late = None
lib.core.hook = lambda one: one
lib.extra.knob = 3

class Mine(Base):
    def run(self, x): return super().run(x)
    def step(self): ...

class Other(Model):
    def load(self, name, mode): ...

def use(model: Model):
    make(1, size=2)
    model.run(3)
    model.limit
    one = Model(4)
    one.go()
    one.late
    lib.core.count
    return Mine(), Other()
"""
MODULES = ("lib/__init__.py", "lib/core.py", "lib/extra.py", "lib/extra/__init__.py", "lib/base.py")
PIECES = (
    "from .core import *\n",
    "from lib.base import Base\n",
    "from .base import Base as Root, Model\n",
    "from . import core\n",
    "__all__ = ['make', 'Base']\n",
    "def make(a, size=1): ...\n",
    "def make(a, length=1): ...\n",
    "def make(a):\n    x.late = 1\n",
    "def hidden(): ...\n",
    "def late(): ...\n",
    "class Base:\n    def run(self, x): ...\n    def step(self): ...\n",
    "class Base:\n    def run(self, x, y): self.count = 1\n",
    "class Base(ABC):\n    @abstractmethod\n    def close(self): ...\n    def step(self, n): ...\n",
    "class Model(Base):\n    limit = 3\n    def go(self): ...\n    def load(self, name): ...\n",
    "class Model(Root):\n    def __init__(self): self.limit = 1\n    def load(self, name, mode, fast): ...\n",
    "class Model:\n    def __getattr__(self, name): ...\n",
    "def drive(one):\n    one.run(3)\n    one.step(n=2)\n    one.load('a', 'b', fast=1)\n",
    "def drive(one):\n    one.run(3, 4)\n",
    "def hook(one): ...\n",
    "def call():\n    hook(1)\n    core.count += knob\n    setattr(core, 'count', 2)\n",
    "count = 1\nknob = 2\n",
    "names = ['late', 'lib.core.hidden', 'go']\n",
    "for name in 'ab':\n    globals()[name] = 1\n",
    "def torn(:\n",
    "# late go count\n",
)


def _versions(seed: int, count: int) -> list[dict[str, str]]:
    """Versions of the package; some differ in one piece of a module, some in whole modules."""
    random_one = random.Random(seed)
    files: dict[str, list[str]] = {"lib/__init__.py": ["from .core import *\n"]}
    found = []
    for _ in range(count):
        path = random_one.choice(MODULES)
        if random_one.random() < 0.1 and path != "lib/__init__.py":
            files.pop(path, None)
        else:
            pieces = files.setdefault(path, [])
            if pieces and random_one.random() < 0.4:
                pieces.pop(random_one.randrange(len(pieces)))
            pieces.insert(random_one.randint(0, len(pieces)), random_one.choice(PIECES))
        if "lib/extra/__init__.py" in files:
            files.pop("lib/extra.py", None)
        found.append({name: "".join(pieces) for name, pieces in files.items()})
    return found


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    changed: dict[str, str | None] = {name: None for name in before if name not in after}
    return changed | {name: text for name, text in after.items() if before.get(name) != text}


@pytest.mark.parametrize("seed", range(12))
def test_answers_equal_those_of_a_fresh_reading_of_each_version(seed: int, tmp_path: Path) -> None:
    consumer = ApiSurface(write_zip(tmp_path / "user.zip", {"user/a.py": CONSUMER}))
    cache = AnalysisCache(folder=tmp_path / "cache", code="")
    texts = _versions(seed, 25)
    made_for = ApiSurface(write_zip(tmp_path / "made_for.zip", texts[12]))
    release = ConsumerRelease(
        label="user 1", surface=consumer, uses=find_uses(consumer, {"lib"}, cache).uses, made_for=made_for
    )
    versions = [
        ProviderVersion(
            id=str(number),
            date="",
            subject="",
            changes=_changes(texts[number - 1] if number else {}, texts[number]),
            parent=number - 1,
        )
        for number in range(len(texts))
    ]
    files = FileIndex(lambda text: text.encode(), cache, methods=overridden_methods([release]))
    found = survival_of_names("user", "lib", "", [release], versions, TreeSurface(files, ["lib"]))
    assert found.checked > 15
    followed = {(history.use.target, history.use.kind, history.use.line): history for history in found.uses}
    for number, members in enumerate(texts):
        fresh = ApiSurface(write_zip(tmp_path / f"{number}.zip", members))
        for use in release.uses:
            problems = check_uses([use], {"lib": ("lib", fresh)}, consumer, {"lib": made_for})
            expected = Answer()
            if problems:
                state = BREAKS if problems[0].breaks else GUARDED
                expected = Answer(state=state, kind=problems[0].kind, text=problems[0].text)
            history = followed.get((use.target, use.kind, use.line))
            if history is None:
                assert expected.state != BREAKS, (number, use.target, expected)
            else:
                assert history.at(number) == expected, (number, use.target)
