"""Asks the real parser of vLLM which commands it refuses. Run it with a Python that has this vLLM.

Reads the words after `vllm serve`, one JSON list a line, and prints a JSON text for each: why vLLM refuses
them, or "". vLLM runs as on a CPU. What the engine makes of JSON only when it starts (SpeculativeConfig), and
the limits of numbers, are asked of vLLM's own classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator

#: What pydantic calls an error of a name, a type or a limit; others come from code that needs a model.
REFUSED = ("unexpected_keyword_argument", "_type", "_parsing", "literal_error", "less_than", "greater_than")
#: Their fields are given as JSON, and have the names of other classes' options.
NOT_OF_OPTIONS = {"SpeculativeConfig", "PoolerConfig", "EPLBConfig", "CompilationConfig", "ProfilerConfig"}


def refusals(lines: list[list[str]]) -> Iterator[str]:
    """Why vLLM refuses each command, or ""."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    sys.argv = ["vllm", "serve"]
    platforms = importlib.import_module("vllm.platforms")
    vars(platforms)["_current_platform"] = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    subparsers = parser.add_subparsers(required=False, dest="subparser")
    for command in importlib.import_module("vllm.entrypoints.cli.serve").cmd_init():
        command.subparser_init(subparsers)
    for words in lines:
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
                parsed = parser.parse_args(["serve", *words])
        except SystemExit as stop:
            yield (errors.getvalue().strip().splitlines() or ["?"])[-1] if stop.code else ""
        except ValueError as error:
            yield f"{type(error).__name__}: {error}"
        else:
            yield "; ".join(_later(vars(parsed)))


def _later(values: dict[str, object]) -> Iterator[str]:
    """What vLLM refuses of parsed values when it makes its configuration."""
    configuration, pydantic = importlib.import_module("vllm.config"), importlib.import_module("pydantic")
    given = values.get("speculative_config")
    if isinstance(given, dict):
        # After its fields, it computes with a model that is not there.
        with contextlib.suppress(AttributeError, AssertionError, ImportError, TypeError, OSError):
            try:
                configuration.SpeculativeConfig(**given)
            except pydantic.ValidationError as error:
                kinds = [(one["type"], one["msg"]) for one in error.errors()]
                yield from (text for kind, text in kinds if any(part in kind for part in REFUSED))
    for name in sorted(set(dir(configuration)) - NOT_OF_OPTIONS):
        cls = getattr(configuration, name)
        fields = getattr(cls, "__pydantic_fields__", {}) if dataclasses.is_dataclass(cls) else {}
        for option, field in fields.items():
            if field.metadata and isinstance(values.get(option), (int, float)):
                annotated = importlib.import_module("typing").Annotated
                try:
                    checked = annotated[(field.annotation, *field.metadata)]
                    pydantic.TypeAdapter(checked).validate_python(values[option])
                except pydantic.ValidationError as error:
                    yield from (one["msg"] for one in error.errors())


if __name__ == "__main__":
    for refusal in refusals([json.loads(line) for line in sys.stdin]):
        print(json.dumps(refusal[:200]), flush=True)
