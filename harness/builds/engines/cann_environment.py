"""Shell commands that set up CANN in a container, as the entry point of CANN's images does."""

from __future__ import annotations

# CANN 8.5 and later install to `cann`, earlier ones to `ascend-toolkit`; NNAL has the libraries of ATB. These
# scripts read variables that are not set.
SET_ENV_FILES = (
    "/usr/local/Ascend/cann/set_env.sh",
    "/usr/local/Ascend/ascend-toolkit/set_env.sh",
    "/usr/local/Ascend/nnal/atb/set_env.sh",
)
SET_ENV = (
    f"for file in {' '.join(SET_ENV_FILES)}; do "
    'if [ -f "$file" ]; then set +u; source "$file"; set -u; fi; done'
)
# Folders that come before those of the image, which CANN's images have in PYTHONPATH themselves.
ADDED_PATH = "NPU_MATRIX_CELL_PYTHONPATH"
ADD_PATH = f'export PYTHONPATH="${ADDED_PATH}${{PYTHONPATH:+:$PYTHONPATH}}"'
