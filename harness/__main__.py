"""`python -m harness` is the same command as `npu-matrix`."""

from harness.cli import main

main()
