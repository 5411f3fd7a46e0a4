"""`status`: the verdicts of a run, and whether they still are about this checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.app import main

MATRIX = """\
format: 1
axes:
  torch: {title: torch, scheme: pep440, package: torch, source: made up}
  torch_npu: {title: torch_npu, scheme: pep440, package: torch-npu, source: made up}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  steady: {title: a row, source: made up, axes: {torch: 2.8.0, torch_npu: 2.8.0, device: sim}}
constraints:
  pair: {require: {torch_npu: {same_as: torch}}, reason: made for each other, source: made up}
profiles:
  default: {title: all, select: [{stacks: all}]}
"""
RULE = "  pair:"
OTHER_RULE = "  other: {require: {torch: {same_as: torch_npu}}, reason: made up, source: made up}\n  pair:"


@pytest.mark.parametrize(
    ("before", "after"), [(RULE, OTHER_RULE), ("torch_npu: 2.8.0", "torch_npu: 2.8.1"), ("steady:", "other:")]
)
def test_verdicts_that_are_not_about_this_checkout_any_more_are_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str
) -> None:
    def command(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["--root", str(tmp_path), "--cache", str(tmp_path / "cache"), *arguments])
        return capsys.readouterr().out

    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(MATRIX)
    command("run", "--check", "constraints")
    assert "this checkout" not in command("status")
    matrix.write_text(MATRIX.replace(before, after))
    shown = command("status")
    assert "1 of these verdicts are not about this checkout as it is now" in shown
    assert "constraints of steady" in shown
    command("run", "--check", "constraints")
    assert "this checkout" not in command("status")
