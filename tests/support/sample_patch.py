"""Patches of a checkout that tests write: the only one of its upstream, with one variant."""

from __future__ import annotations

from pathlib import Path

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


def write_patch(
    folder: Path, text: str, *, versions: str = ">=0.6.1,<=0.9.1", guard: str = "loss:none"
) -> None:
    """Write `all.patch` with its header into a folder `patches/UPSTREAM/NAME`, and the series of the upstream."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "PATCH").write_text(HEADER.format(versions=versions, guard=guard))
    (folder / "all.patch").write_text(text)
    (folder.parent / "series").write_text(f"{folder.name}\n")


def added_line(file: str, line: str, added: str) -> str:
    """A patch that adds a line after the only line of a file."""
    return f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1 +1,2 @@\n {line}\n+{added}\n"
