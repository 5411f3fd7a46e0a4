"""Where this package is installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parent
"""The folder `harness`."""

IMPORT_ROOT = PACKAGE_ROOT.parent
"""The folder that has to be on PYTHONPATH for a program of this package to start elsewhere."""
