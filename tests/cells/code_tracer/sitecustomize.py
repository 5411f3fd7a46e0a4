"""Records which code and files of the package `harness` a process uses, from its start on.

Python imports a module of this name by itself when its folder is on PYTHONPATH. Each process appends lines to a
file of its own in the folder that NPU_MATRIX_TRACE names: `module PATH`, `call PATH LINE` and `open PATH`. Forked
processes go on with the file of their parent.
"""

import os
import sys
import threading

PACKAGE = f"{os.sep}harness{os.sep}"
FOLDER = os.environ.get("NPU_MATRIX_TRACE", "")
BUNDLE = f"{os.sep}builds{os.sep}cell{os.sep}bundle.py"
OPTIMIZED = 0x1


class Recorder:
    """Writes each thing once per process."""

    def __init__(self, folder):
        self.seen = set()
        # By their ids: to compare code objects costs more than the calls. They are kept, so that no id is used
        # twice.
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
        """Called for each call of a Python function; it returns None, so that its lines are not traced."""
        code = frame.f_code
        if id(code) in self.codes:
            return
        self.codes[id(code)] = code
        path = code.co_filename
        if PACKAGE not in path:
            return
        if code.co_name == "<module>":
            self.write(f"module {path}")
        # The body of a class runs whenever its module does, and a comprehension within what is recorded.
        elif code.co_flags & OPTIMIZED and code.co_name not in COMPREHENSIONS:
            self.write(f"call {path} {code.co_firstlineno}")

    def audit(self, event, arguments):
        if event == "open" and self.active and isinstance(arguments[0], str) and PACKAGE in arguments[0]:
            frame = sys._getframe(1)
            while frame is not None:
                # What is copied into the bundle is not used by being copied.
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
