"""The safe loader of YAML for large files: that of libyaml where PyYAML was built with it.

It reads the same values about ten times as fast. matrix.yaml, whose errors name lines and columns, has a
reader of its own (`harness.matrix.document.yaml_positions`).
"""

from __future__ import annotations

import yaml

FAST_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
