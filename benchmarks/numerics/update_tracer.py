"""Records which lines of verl a training runs between sampled tokens and optimizer steps.

A plugin of the trainer's program (`--plugin benchmarks.numerics.update_tracer`), which every process of verl
imports. Each process appends lines `FILE LINE` to its own file in the folder NPU_MATRIX_TRACE.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import verl

ENTRIES = frozenset(
    {
        "apply_kl_penalty",
        "compute_advantage",
        "compute_advantage_for_multi_trajectories",
        "compute_log_prob",
        "compute_ref_log_prob",
        "compute_response_mask",
        "compute_rollout_correction_and_add_to_batch",
        "update_actor",
        "update_policy",
        "_balance_batch",
        "_compute_advantage",
        "_compute_old_log_prob",
        "_compute_ref_log_prob",
        "_update_actor",
    }
)
"""Functions of verl with which the trainer starts what belongs to an update."""

FOLDER = f"{Path(verl.__file__).parent}{os.sep}"


class Tracer:
    """Writes each line once per process, if it runs below one of the entries."""

    def __init__(self, folder: str) -> None:
        self.seen: set[tuple[str, int]] = set()
        self.file = os.open(f"{folder}/{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.local = threading.local()

    def start(self) -> None:
        """Trace this thread and all that start later."""
        threading.settrace(self.call)
        sys.settrace(self.call)

    def call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Called for each call of a Python function."""
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if frame.f_code.co_name in ENTRIES:
            self.local.depth = getattr(self.local, "depth", 0) + 1
            return self.entry
        return self.line if getattr(self.local, "depth", 0) else None

    def entry(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Called for the lines and the end of an entry."""
        if event == "return":
            self.local.depth -= 1
        self.line(frame, event, _argument)
        return self.entry

    def line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Called for each line of a function below an entry."""
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in self.seen:
            self.seen.add(place)
            os.write(self.file, f"{place[0].removeprefix(FOLDER)} {place[1]}\n".encode())
        return self.line


if os.environ.get("NPU_MATRIX_TRACE"):
    Tracer(os.environ["NPU_MATRIX_TRACE"]).start()
