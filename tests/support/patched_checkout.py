"""Files of a small checkout: a matrix whose only check is `patches`, and patches with one variant."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from harness.plan.tasks.check_registry import all_checks

MATRIX = """\
format: 1
axes:
  verl: {{title: verl, scheme: pep440, package: verl, source: a test, repository: "https://example.org/verl.git"}}
  python: {{title: Python, scheme: python, source: a test}}
  device: {{title: device, scheme: name, source: a test, values: {{sim: {{title: simulated}}}}}}
profiles:
  default:
    title: a test
    without: {without}
    select:
      - product: {{verl: {versions}}}
        with: {{python: host, device: sim}}
"""
HEADER = """\
Subject: a test
Why: a test
Owner: tests
Upstream-Status: Pending
Upstream-Url: none (a test)
Applies-To: {versions}
Guarded-By: {guard}
Review-By: 2999-01-01
Body: all.patch {versions}
"""
MEAN = "def mean(values):\n    total = sum(values)\n    return total / len(values)\n"
EMPTY_MEAN = """\
diff --git a/{file} b/{file}
--- a/{file}
+++ b/{file}
@@ -1,3 +1,5 @@
 def mean(values):
     total = sum(values)
+    if not values:
+        return 0
     return total / len(values)
"""


def matrix_of_patches(versions: Iterable[str]) -> str:
    """A matrix with a cell for each version of verl, and only the check `patches`: no index is needed."""
    without = {check.name: "the test has no index" for check in all_checks() if check.name != "patches"}
    return MATRIX.format(without=json.dumps(without), versions=json.dumps(list(versions)))


def write_patch(
    folder: Path, text: str, *, versions: str = ">=0.6.1,<=0.9.1", guard: str = "loss:none"
) -> None:
    """Write the patch `all.patch` into a folder `patches/UPSTREAM/NAME`, as the only one of its upstream."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "PATCH").write_text(HEADER.format(versions=versions, guard=guard))
    (folder / "all.patch").write_text(text)
    (folder.parent / "series").write_text(f"{folder.name}\n")


def added_line(file: str, line: str, added: str) -> str:
    """A patch that adds a line after the only line of a file."""
    return f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1 +1,2 @@\n {line}\n+{added}\n"
