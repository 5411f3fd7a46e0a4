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
# torch_npu loads libascend_hal.so, which is part of the driver. Where an image is built there is no driver,
# and the toolkit has a stub of it. Source: the Dockerfiles of vllm-ascend since 0.8.
DRIVER = "/usr/local/Ascend/driver/lib64"
BUILD_ENV = (
    f'{SET_ENV}; stubs="${{ASCEND_TOOLKIT_HOME:-}}/$(uname -m)-linux/devlib"; '
    f'if [ -d "$stubs" ] && [ ! -d {DRIVER} ]; then '
    'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$stubs"; fi'
)
# Folders that come before those of the image, which CANN's images have in PYTHONPATH themselves.
ADDED_PATH = "NPU_MATRIX_CELL_PYTHONPATH"
ADD_PATH = f'export PYTHONPATH="${ADDED_PATH}${{PYTHONPATH:+:$PYTHONPATH}}"'
