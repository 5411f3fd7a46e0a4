from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.builds.ownership.owner_labels import (
    ProcessOwner,
    ProcessView,
    expiry,
    has_owner_labels,
    make_labels,
    this_process,
)


def test_a_living_process_is_told_from_a_dead_one_and_from_another_with_its_number() -> None:
    view = ProcessView()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = view.owner(process.pid)
    assert owner is not None
    assert view.state(owner) == "alive"
    assert view.state(replace(owner, started=owner.started + 1)) == "dead"
    assert view.state(replace(owner, boot="another boot")) == "dead"
    process.communicate(b"\n")
    assert view.state(owner) == "dead"


def test_nothing_is_said_of_processes_that_cannot_be_seen_from_here() -> None:
    mine = this_process()
    view = ProcessView()
    assert "elsewhere" in view.state(replace(mine, host="elsewhere"))
    assert "namespace" in view.state(replace(mine, space="1"))


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(f"7 (a) b) Z {' '.join(['0'] * 30)}")
    assert ProcessView(proc=tmp_path).owner(7) is None


@given(
    st.builds(
        ProcessOwner,
        host=st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True),
        boot=st.uuids().map(str),
        space=st.integers(0, 2**40).map(str),
        pid=st.integers(1, 2**22),
        started=st.integers(0, 2**50),
    )
)
def test_an_owner_is_read_back_from_its_label(owner: ProcessOwner) -> None:
    assert ProcessOwner.parse(str(owner)) == owner


@pytest.mark.parametrize("text", ["", "a/b/c/d/e", "a/b/c/1", "host/b/s/-1/2", "host/b/s/1/2/3"])
def test_other_text_is_no_owner(text: str) -> None:
    assert ProcessOwner.parse(text) is None


def test_labels_say_whose_what_for_and_until_when() -> None:
    labels = make_labels(owner=this_process(), expires=1000.7, key="k", run="r", task="environment")
    assert has_owner_labels(labels)
    assert expiry(labels) == 1000.0
    assert ProcessOwner.parse(labels["npu-matrix.owner"]) == ProcessView().owner(os.getpid())
    assert "npu-matrix.cell" not in labels
    assert not has_owner_labels({"npu-matrix.owner": "x"})
    assert not has_owner_labels({"com.example.owner": "x"})
