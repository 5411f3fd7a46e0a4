"""The check `environment`: builds the environment of one cell, probes it and judges what the probe found.

Start with `environment_spec.py` (everything that determines an environment), then `venv_environment.py` or
`container_environment.py`. `cell_command.py` is how all other checks start a program in a built environment.
"""
