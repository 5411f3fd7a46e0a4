"""Files that are for other hardware than NPUs, by their names."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

#: Folders and words in names of files that are for other hardware than NPUs.
_OTHER_HARDWARE = re.compile(r"cuda|cu\d+|nvidia|gpu|rocm|amd|xpu|hpu|tpu|musa|mlu|.*cambricon.*")


def is_for_other_hardware(path: PurePosixPath) -> bool:
    """Whether a folder of the path, or a word in the name of a file, names other hardware."""
    words = (*path.parts[:-1], *re.split(r"[-_.]", path.name))
    return any(_OTHER_HARDWARE.fullmatch(word.lower()) for word in words)
