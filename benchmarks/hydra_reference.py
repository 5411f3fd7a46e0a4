"""Composes configurations as a user's program does: by `hydra.main`, in a process of its own.

    python -m benchmarks.hydra_reference CHECKOUT    # reads requests, one JSON object on each line

Each request has the `module` of the checkout that Hydra starts, and its command line `words`. The answer has
the composed `values`, or the text of what Hydra `refused`. Only YAML files of the checkout are used, no code.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.figures import ROOT

DECORATOR = re.compile(r"@hydra\.main\((?P<given>[^)]*)\)")
GIVEN = re.compile(r"(config_path|config_name)\s*=\s*[\"']([^\"']*)[\"']")
FOLDER_OPTIONS = ("--config-path", "--config-dir", "-cp", "-cd")
QUIET = (
    "hydra/job_logging=disabled",
    "hydra/hydra_logging=disabled",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
)


@dataclass(frozen=True, kw_only=True)
class Composed:
    """What Hydra composed, or its message when it refused."""

    values: Mapping[str, Any]
    refused: str


class HydraReference:
    """A process that composes configurations of one checkout. Use `hydra_reference()`."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests, self._answers = requests, answers

    def compose(self, module: str, words: Sequence[str]) -> Composed | None:
        """Compose for `python -m module words`; None if Hydra does not start this module."""
        print(json.dumps({"module": module, "words": list(words)}), file=self._requests, flush=True)
        answer = json.loads(self._answers.readline())
        return None if answer is None else Composed(values=answer["values"], refused=answer["refused"])


@contextmanager
def hydra_reference(checkout: Path) -> Iterator[HydraReference]:
    """Start the process."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hydra_reference", str(checkout)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield HydraReference(process.stdin, process.stdout)
        process.stdin.close()


def _copy_of_yaml(checkout: Path, folder: Path) -> None:
    """The YAML files of a checkout, in folders that can be imported: `pkg://` finds them as packages."""
    for file in checkout.rglob("*.yaml"):
        target = folder / file.relative_to(checkout)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for parent in {parent for file in folder.rglob("*.yaml") for parent in file.parents}:
        if parent != folder and folder in parent.parents:
            (parent / "__init__.py").touch()


def _module_file(checkout: Path, module: str) -> Path | None:
    """The file of a module, or of a path that begins outside of the checkout."""
    parts = module.split("/") if module.endswith(".py") else [*module.split(".")]
    for start in range(len(parts) if module.endswith(".py") else 1):
        named = checkout.joinpath(*parts[start:])
        for file in (named,) if module.endswith(".py") else (named.with_suffix(".py"), named / "__main__.py"):
            if file.is_file() and checkout in file.resolve().parents:
                return file
    return None


def _composed(checkout: Path, copy: Path, module: str, words: Sequence[str]) -> dict[str, Any] | None:
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig, OmegaConf

    file = _module_file(checkout, module)
    found = DECORATOR.search(file.read_text("utf-8")) if file else None
    if file is None or found is None:
        return None
    given = dict(GIVEN.findall(found["given"]))
    taken: list[Any] = []

    def task(config: DictConfig) -> None:
        taken.append(OmegaConf.to_container(config, resolve=False))

    beside = copy / file.relative_to(checkout).parent
    beside.mkdir(parents=True, exist_ok=True)
    sys.argv = [str(beside / file.name), *_relative(words, copy, beside), *QUIET]
    folder = os.path.normpath(beside / given.get("config_path", "."))
    task.__module__ = "__main__"
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            hydra.main(config_path=folder, config_name=given.get("config_name"), version_base=None)(task)()
    except (SystemExit, Exception) as error:  # noqa: BLE001 - whatever stops Hydra stops the user's program
        errors.write(str(error))
    finally:
        GlobalHydra.instance().clear()
    if not taken:
        return {"values": {}, "refused": errors.getvalue() or "no reason"}
    return {"values": taken[0], "refused": ""}


def _relative(words: Sequence[str], copy: Path, beside: Path) -> Iterator[str]:
    """The words, with absolute folders of configurations: those of the copy for those given from outside."""
    named = False
    for word in words:
        option, equals, value = word.partition("=")
        if named:
            yield _folder(word, copy, beside)
        elif equals and option in FOLDER_OPTIONS:
            yield f"{option}={_folder(value, copy, beside)}"
        else:
            yield word
        named = word in FOLDER_OPTIONS


def _folder(given: str, copy: Path, beside: Path) -> str:
    parts = given.strip("/").split("/")
    places = (beside / given, *(copy.joinpath(*parts[start:]) for start in range(len(parts))))
    return str(next((place for place in places if place.is_dir() and copy in place.parents), given))


def main(checkout: Path) -> None:
    """Answer the requests of standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with tempfile.TemporaryDirectory(prefix="npu-matrix-yaml-") as name:
        copy = Path(name)
        _copy_of_yaml(checkout, copy)
        sys.path.insert(0, str(copy))
        for line in sys.stdin:
            request = json.loads(line)
            os.chdir(copy)
            answer = _composed(checkout.resolve(), copy, request["module"], request["words"])
            print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
