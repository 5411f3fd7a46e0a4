"""Records which code and files of the package `harness` a process uses, from its start on.

Python imports a module with this name at its start if the folder is on PYTHONPATH. Each process appends lines to its
own file in the folder NPU_MATRIX_TRACE: `module PATH`, `call PATH LINE` and `open PATH`. Forked processes use the
file of their parent.
"""

import os
import sys
import threading
from types import FrameType

PACKAGE = f"{os.sep}harness{os.sep}"
FOLDER = os.environ.get("NPU_MATRIX_TRACE", "")
BUNDLE = f"{os.sep}builds{os.sep}cell{os.sep}bundle.py"
OPTIMIZED = 0x1


class Recorder:
    """Writes each line once per process."""

    def __init__(self, folder):
        self.seen = set()
        # By id, because comparing code objects takes longer than the calls. The objects are stored, so that Python
        # does not reuse their ids.
        self.codes = {}
        self.file = os.open(
            f"{folder}/{os.getpid()}-{id(self)}.txt",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            0o666,
        )
        self.active = True

    def write(self, line):
        if line not in self.seen:
            self.seen.add(line)
            os.write(self.file, (line + "\n").encode("utf-8", "replace"))

    def trace(self, frame, _event, _argument):
        """Called for each call of a Python function. It returns None, so that the lines of the function are not traced."""
        code = frame.f_code
        if id(code) in self.codes:
            return
        self.codes[id(code)] = code
        path = code.co_filename
        if PACKAGE not in path:
            return
        if code.co_name == "<module>":
            self.write(f"module {path}")
        # The body of a class runs whenever its module is imported, and a comprehension runs in a recorded function.
        elif code.co_flags & OPTIMIZED and code.co_name not in COMPREHENSIONS:
            self.write(f"call {path} {code.co_firstlineno}")

    def audit(self, event, arguments):
        if event == "open" and self.active and isinstance(arguments[0], str) and PACKAGE in arguments[0]:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None:
                # Copying a file into the bundle does not use it.
                if frame.f_code.co_filename.endswith(BUNDLE):
                    return
                frame = frame.f_back
            self.write(f"open {arguments[0]}")


COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}

if FOLDER:
    RECORDER = Recorder(FOLDER)
    sys.addaudithook(RECORDER.audit)
    threading.settrace(RECORDER.trace)
    sys.settrace(RECORDER.trace)
