"""The patches of this project, applied to the text that they were made from, keep line endings and other bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.patchstack.apply.classify import classify, read_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.format.diff import ChangeKind, Patch
from harness.patchstack.stacks.patch_selection import all_variants
from harness.sources.tree import TreeFile

PATCHES = Path(__file__).parents[3] / "patches"
BODIES = sorted(PATCHES.glob("*/*/*.patch"))
CRLF = [variant for variant in BODIES if b"\r\n" in variant.read_bytes()]


def named(variant: Path) -> str:
    return "/".join(variant.relative_to(PATCHES).parts)


def before(patch: Patch, filler: bytes) -> dict[str, bytes]:
    """Path -> a file with the old text of each hunk at its line, and `filler` lines elsewhere."""
    files = {}
    for file in patch.files:
        if file.change is ChangeKind.CREATE:
            continue
        lines: list[bytes] = []
        for hunk in file.hunks:
            lines += [filler] * (hunk.old_start - 1 - len(lines))
            if hunk.section:
                lines[-1] = hunk.section.rstrip(b"\r") + filler.removeprefix(b"filler")
            lines += hunk.pre.splitlines(keepends=True)
        files[file.source] = b"".join([*lines, filler])
    return files


def test_both_upstreams_have_variants_for_files_with_crlf() -> None:
    assert {variant.relative_to(PATCHES).parts[0] for variant in CRLF} == {"verl", "vllm_ascend"}


@pytest.mark.parametrize("variant", BODIES, ids=named)
def test_a_variant_applies_to_its_original_text(variant: Path) -> None:
    loaded = read_patch(named(variant), variant.read_bytes())
    assert loaded.patch
    ending = b"\r\n" if variant in CRLF else b"\n"
    files = before(loaded.patch, b"filler" + ending)
    verdict = classify(loaded, MemoryTree(files={path: TreeFile(data=data) for path, data in files.items()}))
    assert verdict.verdict is PatchVerdict.CLEAN, verdict.reasons
    for path in files:
        changed = verdict.files[path]
        assert changed
        assert changed.data != files[path]
        other = changed.data.replace(b"\r\n", b"") if variant in CRLF else changed.data
        assert (b"\n" if variant in CRLF else b"\r") not in other


@pytest.mark.parametrize("variant", CRLF, ids=named)
def test_a_crlf_variant_is_converted_for_a_file_with_lf(variant: Path) -> None:
    loaded = read_patch(named(variant), variant.read_bytes())
    assert loaded.patch
    files = {path: data.replace(b"\r", b"") for path, data in before(loaded.patch, b"filler\r\n").items()}
    tree = MemoryTree(files={path: TreeFile(data=data) for path, data in files.items()})
    verdict = classify(loaded, tree)
    assert verdict.verdict is PatchVerdict.LINE_ENDINGS
    assert verdict.candidate_data
    again = classify(read_patch("again", verdict.candidate_data), tree)
    assert again.verdict is PatchVerdict.CLEAN
    assert all(changed and b"\r" not in changed.data for changed in again.files.values())


def test_variants_are_grouped_by_patch(tmp_path: Path) -> None:
    variants, logical = all_variants(PATCHES, "verl")
    listed = (PATCHES / "verl" / "series").read_text().splitlines()
    assert [one.name for one in logical] == [
        f"verl/{line}" for line in listed if line and not line.startswith("#")
    ]
    assert sorted(place for one in logical for place, _ in one.variants) == list(range(len(variants)))
    (tmp_path / "0001-theirs.patch").write_bytes(BODIES[0].read_bytes())
    variants, logical = all_variants(tmp_path)
    assert len(variants) == 1
    assert logical == ()
