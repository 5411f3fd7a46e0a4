"""The facts about patches that the report reads from the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_upstream import BASE, Git, checkout_with_patches, upstream_with_break

from harness.matrix.reading.load_matrix import load_matrix
from harness.report.model.patch_facts import read_patch_facts
from harness.report.model.survival_facts import read_survival
from harness.settings import load_settings
from harness.workspace.patches.patch_facts_cache import patch_facts_files
from harness.workspace.patches.patch_survival_cache import patch_survival_file


@pytest.fixture
def upstream(tmp_path: Path) -> Git:
    (tmp_path / "mirrors").mkdir()
    return upstream_with_break(tmp_path / "mirrors" / "upstream")


@pytest.fixture
def checkout(tmp_path: Path, upstream: Git) -> Path:
    return checkout_with_patches(tmp_path / "checkout", upstream)


def test_a_report_has_the_history_of_the_patches_where_a_clone_is_at_hand(
    upstream: Git,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    matrix = checkout / "matrix.yaml"
    text = matrix.read_text().replace('"https://x"', '"https://x/verl/upstream", tag: "v{version}"')
    matrix.write_text(text.replace("1.0.dev0@" + upstream("rev-parse", "v1.0"), "1.0"))
    upstream("remote", "add", "origin", "https://x/verl/upstream.git")
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))

    def recorded(cache: str = "cache") -> Path | None:
        flags = {"cache": str(tmp_path / cache), "matrix": str(matrix)}
        settings = load_settings(flags, os.environ, checkout)
        return patch_survival_file(settings, load_matrix(matrix))

    file = recorded()
    assert file
    found = read_survival(file)
    assert found.range == f"v1.0..{upstream('rev-parse', 'main')}"
    assert [patch.id for patch in found.patches] == ["verl/seven", "verl/eight"]
    assert [found.legend[index] for index in found.patches[0].verdicts] == ["conflict", "offset"]
    assert found.patches[0].bodies[0].versions == ">=0,<2.1"
    written = file.stat().st_mtime_ns
    assert recorded() == file
    assert file.stat().st_mtime_ns == written
    upstream.commit("3.0", BASE, "mend it")
    assert recorded() != file
    (tmp_path / "file").write_text("")
    assert recorded("file") is None
    assert "the history of the patches could not be computed" in caplog.text
    monkeypatch.delenv("NPU_MATRIX_MIRRORS")
    assert recorded() is None


def test_a_report_has_heads_and_summaries_where_trees_are_at_hand(
    upstream: Git,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    matrix = checkout / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace('"https://x"', '"https://x/verl/upstream"'))
    upstream("remote", "add", "origin", "https://x/verl/upstream.git")

    def recorded(cache: str = "cache") -> tuple[Path, ...]:
        flags = {"cache": str(tmp_path / cache), "matrix": str(matrix)}
        return patch_facts_files(load_settings(flags, os.environ, checkout), load_matrix(matrix))

    assert recorded() == ()
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    files = recorded()
    found = read_patch_facts(files)
    assert {head.patch: head.verdict for head in found.heads}["verl/seven"] == "conflict"
    assert "break it" in found.heads[0].broke
    assert {one.patch: one.verdict for one in found.summaries} == {
        "verl/seven": "clean",
        "verl/eight": "conflict",
    }
    written = [file.stat().st_mtime_ns for file in files]
    assert recorded() == files
    assert [file.stat().st_mtime_ns for file in files] == written
    texts = [file.read_text() for file in files]
    files[0].write_text(texts[0].replace("conflict", "clean"))
    files[1].write_text(texts[1][:40])
    assert [file.read_text() for file in recorded()] == texts
    upstream.commit("3.0", BASE, "mend it")
    assert recorded() != files
    (tmp_path / "file").write_text("")
    assert recorded("file") == ()
    assert "the heads of the patches could not be computed" in caplog.text
