from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InputError
from harness.patchstack.format.patch_header import parse_header
from harness.patchstack.stacks.patch_sources import PatchSources
from harness.patchstack.stacks.patch_stack import load_stack, upstreams
from harness.patchstack.stacks.stack_lint import lint_stack

ROOT = Path(__file__).parents[3]
BODY = b"--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-a\n+b\n"
HEADER = """\
Subject: a is b
Why: because a is wrong,
 and b is right
Owner: us
Upstream-Status: Pending
Upstream-Url: https://example.org/1
Applies-To: >=1.0,<3.0
Guarded-By: loss:case, grpo
Review-By: 2027-01-31
Body: one.patch >=1.0,<2.0
Body: two.patch >=2.0,<3.0
"""


def selected_patches(root: Path, upstream: str, version: str) -> list[dict[str, object]]:
    return list(
        PatchSources(root=root, shipped=None, places=(), axes={}).facet(upstream, {upstream: version})
    )


def make(root: Path, header: str = HEADER, series: str = "fix\n", **variants: bytes) -> Path:
    folder = root / "patches" / "up" / "fix"
    folder.mkdir(parents=True)
    (folder / "PATCH").write_text(header, encoding="utf-8")
    (folder.parent / "series").write_text(series, encoding="utf-8")
    for name, data in {"one": BODY, "two": BODY, **variants}.items():
        (folder / f"{name}.patch").write_bytes(data)
    return root / "patches"


def test_select_returns_the_variant_for_the_version(tmp_path: Path) -> None:
    stack = load_stack(make(tmp_path), "up")
    assert [patch.file for patch in stack.select("1.5")] == ["patches/up/fix/one.patch"]
    assert [patch.file for patch in stack.select("2.0")] == ["patches/up/fix/two.patch"]
    assert stack.select("3.0") == ()


def test_a_patch_without_a_variant_for_its_version_is_not_left_out(tmp_path: Path) -> None:
    stack = load_stack(make(tmp_path, HEADER.replace("two.patch >=2.0", "two.patch >=2.5")), "up")
    assert [patch.file for patch in stack.select("2.5")] == ["patches/up/fix/two.patch"]
    with pytest.raises(InputError, match=r"fix applies to 2\.1, but has no variant for it"):
        stack.select("2.1")
    assert stack.select("3.1") == ()


@pytest.mark.parametrize("name", ["loose.patch", "fix/three.patch", "fix/three.diff", "fix/THREE.PATCH"])
def test_a_patch_file_that_no_header_names_is_an_input_error(tmp_path: Path, name: str) -> None:
    patches = make(tmp_path)
    (patches / "up" / name).write_bytes(BODY)
    with pytest.raises(InputError, match="no cell has this patch"):
        load_stack(patches, "up")
    (patches / "up" / name).unlink()
    (patches / "up" / name).symlink_to(patches / "up/fix/one.patch")
    with pytest.raises(InputError, match="no cell has this patch"):
        load_stack(patches, "up")


def test_a_development_version_has_a_variant(tmp_path: Path) -> None:
    chosen = load_stack(make(tmp_path), "up").select("2.0.dev0")
    assert [patch.version_range for patch in chosen] == [">=1.0,<2.0"]


def test_an_invalid_version_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'core_r0\.12' is not a version"):
        selected_patches(make(tmp_path).parent, "up", "core_r0.12")


def test_the_facet_changes_only_with_the_variant(tmp_path: Path) -> None:
    make(tmp_path)
    before = selected_patches(tmp_path, "up", "1.5")
    assert set(before[0]) == {"id", "version_range", "file", "digest", "series", "stale_origin"}
    header = tmp_path / "patches/up/fix/PATCH"
    header.write_text(header.read_text(encoding="utf-8").replace("because", "since"), encoding="utf-8")
    assert selected_patches(tmp_path, "up", "1.5") == before
    (tmp_path / "patches/up/fix/one.patch").write_bytes(BODY + b"\n")
    assert selected_patches(tmp_path, "up", "1.5") != before


def test_no_folder_is_an_empty_stack(tmp_path: Path) -> None:
    assert selected_patches(tmp_path, "none", "1.0") == []
    assert upstreams(tmp_path / "patches") == ()


def test_continuation_lines_are_joined(tmp_path: Path) -> None:
    header, problems = parse_header(make(tmp_path) / "up" / "fix" / "PATCH")
    assert not problems
    assert header is not None
    assert header.why == "because a is wrong, and b is right"
    assert header.guarded_by == ("loss:case", "grpo")


BROKEN = {
    "missing trailer": (("Owner: us\n", ""), 1, "Owner is missing"),
    "empty trailer": (("Owner: us", "Owner:"), 4, "empty"),
    "unknown trailer": (("Owner: us", "Owner: us\nColour: red"), 5, "unknown trailer Colour"),
    "twice": (("Owner: us", "Owner: us\nOwner: them"), 5, "twice"),
    "no trailer": (("Owner: us", "Owner: us\n???"), 5, "neither"),
    "status": (("Pending", "Soon"), 5, "unknown status"),
    "url": (("https://example.org/1", "somewhere"), 6, "not a URL"),
    "range": ((">=1.0,<3.0", "one to three"), 7, "not a version range"),
    "guard": (("loss:case", "Loss!"), 8, "not the name of a check"),
    "date": (("2027-01-31", "next year"), 9, "not a date"),
    "body": (("one.patch >=1.0,<2.0", "one.patch"), 10, "a Body trailer"),
    "body file": (("one.patch", "uno.patch"), 10, "uno.patch does not exist"),
    "body range": ((">=1.0,<2.0", "(1)"), 10, "not a version range"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_invalid_header_is_reported_with_its_line(tmp_path: Path, name: str) -> None:
    (old, new), line, what = BROKEN[name]
    patches = make(tmp_path, HEADER.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_stack(patches, "up")
    problem = caught.value.problems[0]
    assert what in problem.what
    assert str(problem.where).endswith(f"PATCH:{line}")


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    patches = make(tmp_path, HEADER.replace("Pending", "Soon").replace("2027-01-31", "x"))
    assert len(lint_stack(patches, "up")) == 2


SERIES = {
    "no folder": ("fix\nother\n", "no other/PATCH", 2),
    "twice": ("fix\n# a comment\nfix\n", "twice", 3),
    "escape": ("fix\n../fix\n", "not a patch id", 2),
    "not listed": ("", "not in the series", 0),
}


@pytest.mark.parametrize("name", SERIES)
def test_an_invalid_series_is_reported_with_its_line(tmp_path: Path, name: str) -> None:
    series, what, line = SERIES[name]
    problems = lint_stack(make(tmp_path, series=series), "up")
    assert any(what in problem.what for problem in problems)
    assert problems[0].where is not None
    assert problems[0].where.line == line


def test_a_pipe_as_series_file_is_reported_without_blocking(tmp_path: Path) -> None:
    patches = make(tmp_path)
    (patches / "up" / "series").unlink()
    os.mkfifo(patches / "up" / "series")
    (problem,) = lint_stack(patches, "up")
    assert "pipe" in problem.why


def test_a_missing_series_file_is_reported(tmp_path: Path) -> None:
    patches = make(tmp_path)
    (patches / "up" / "series").unlink()
    with pytest.raises(InputError, match="series"):
        load_stack(patches, "up")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ((">=2.0,<3.0\n", ">=2.1,<3.0\n"), "has no variant"),
        (("one.patch >=1.0,<2.0", "one.patch >=1.0,<=2.0"), "of 2 variants"),
        (("Applies-To: >=1.0", "Applies-To: >=1.5"), "outside Applies-To"),
    ],
)
def test_gaps_and_overlaps_of_ranges_are_reported(tmp_path: Path, change: tuple[str, str], what: str) -> None:
    patches = make(tmp_path, HEADER.replace(*change))
    problems = lint_stack(patches, "up", ["1.0", "2.0", "2.5", "3.0"])
    assert any(what in problem.what for problem in problems)


def test_adjacent_ranges_have_no_problem(tmp_path: Path) -> None:
    assert lint_stack(make(tmp_path), "up", ["0.9", "1.0", "2.0", "2.5", "3.0"]) == []


@pytest.mark.parametrize(
    ("variant", "line"),
    [
        (BODY[:-1], 5),
        (b"\xef\xbb\xbf" + BODY, 1),
        (BODY + b"+left out\n", 6),
        (b"--- a/m.py\n+++ b/m.py\n@@ -1,3 +1 @@\n-a\n+b\n", 5),
        (b"--- a/../m.py\n+++ b/../m.py\n@@ -1 +1 @@\n-a\n+b\n", 1),
    ],
    ids=["no newline", "byte order mark", "below the hunk", "counts", "unsafe"],
)
def test_an_invalid_variant_is_reported_with_its_line(tmp_path: Path, variant: bytes, line: int) -> None:
    problems = lint_stack(make(tmp_path, one=variant), "up")
    assert line in [problem.where.line for problem in problems if problem.where]


def test_a_guard_that_is_a_test_must_exist(tmp_path: Path) -> None:
    patches = make(tmp_path, HEADER.replace("loss:case, grpo", "tests/npu/test_x.py::test_y"))
    assert "which does not exist" in lint_stack(patches, "up")[0].what
    (tmp_path / "tests" / "npu").mkdir(parents=True)
    (tmp_path / "tests" / "npu" / "test_x.py").write_text("def test_y(): pass\n")
    assert lint_stack(patches, "up") == []


def test_an_overdue_review_is_reported(tmp_path: Path) -> None:
    patches = make(tmp_path)
    assert lint_stack(patches, "up", today=date(2027, 1, 31)) == []
    assert "has passed: 2027-01-31" in lint_stack(patches, "up", today=date(2027, 2, 1))[0].what


@given(text=st.text(alphabet="ABa: -\n\t#\x00é>=,.", max_size=200))
def test_any_header_text_is_read_or_reported(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("header") / "PATCH"
    file.write_text(text, encoding="utf-8")
    header, problems = parse_header(file)
    assert (header is None) == bool(problems)


def test_the_shipped_stacks_have_no_problem() -> None:
    names = upstreams(ROOT / "patches")
    assert "verl" in names
    versions = [
        "0.5.0",
        "0.6.0",
        "0.6.1",
        "0.7.0.dev0",
        "0.7.0",
        "0.7.1",
        "0.8.0",
        "0.9.0",
        "0.9.1",
        "0.10.0",
    ]
    assert [str(problem) for name in names for problem in lint_stack(ROOT / "patches", name, versions)] == []


def test_every_shipped_verl_release_has_a_patch() -> None:
    for version in ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"):
        assert selected_patches(ROOT, "verl", version)
