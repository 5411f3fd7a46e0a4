"""Builds a cell's environment from its lock, exports the lock, and removes what is no longer needed.

The check `environment` is declared in `checks.py`. Start with `cell/venv_environment.py` (a virtual
environment) or `cell/container_environment.py` (an image); both build what `cell/environment_spec.py`
describes.
"""
