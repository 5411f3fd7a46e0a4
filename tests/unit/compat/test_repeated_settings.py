from __future__ import annotations

from pathlib import Path

import pytest

from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.repeated_settings import REPEATED_RULE

PROGRAM = "python -m verl.trainer.main_ppo \\\n"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("data.train_batch_size=1024", "data.train_batch_size=512"), [("1024", 2)]),
        (("data.train_batch_size=1024", "data.train_batch_size=1024"), []),
        (("+data.a=1", "data.b=2", "++data.a=2"), [("+data.a=1", 2)]),
        (("data.a=1", "data.a=2", "data.a=3"), [("data.a=1", 2), ("data.a=2", 3)]),
        (("data.a=1", "~data.a"), []),
        (("data.a=1", "data.ab=2"), []),
    ],
)
def test_what_a_later_override_replaces_is_told(
    tmp_path: Path, lines: tuple[str, ...], told: list[tuple[str, int]]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(PROGRAM + " \\\n".join(lines) + "\n")
    found = [one for one in lint_file(script, {}).findings if one.rule == REPEATED_RULE]
    assert [one.line for one in found] == [line for _text, line in told]
    assert all(text in one.message for one, (text, _line) in zip(found, told, strict=True))
