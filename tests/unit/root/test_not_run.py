"""A test that could not run says so and why; in CI, a missing program is a failure."""

from __future__ import annotations

from pathlib import Path

import missing_programs
import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parents[2] / "conftest.py"
TESTS = """
import pytest
def test_skips():
    pytest.skip("a reason")
def test_says_it_already():
    pytest.skip("not run: another reason")
@pytest.mark.skipif(True, reason="a third reason")
def test_is_marked():
    pass
"""


def test_every_skip_is_called_not_run_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text("utf-8"))
    pytester.makepyfile(TESTS, test_whole_module="import pytest\npytest.importorskip('no_such_module')\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-ra")
    lines = [line for line in result.outlines if "not run: " in line]
    assert len(lines) == 2 * 4, "in the summary of pytest and in our own list"
    assert not [line for line in lines if line.count("not run: ") > 1]
    for reason in ("a reason", "another reason", "a third reason", "could not import 'no_such_module'"):
        assert sum(f"not run: {reason}" in line for line in lines) == 2


def test_a_missing_program_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install a-package"):
        missing_programs.required_program("no-such-program", "a-package")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install a-package"):
        missing_programs.required_program("no-such-program", "a-package")
    assert Path(missing_programs.required_program("sh", "dash")).is_file()
