"""Programs that run inside a cell, as the host starts and reads them.

Start with `program_run.py`, which starts a program and classifies how it ended. `built_environment.py` has
what the check `environment` measures, `torch_device.py` what a program reports about its device,
`self_test.py` the self-tests of checks, and `unsimulated_operators.py` the errors about operators that the
simulated device lacks.
"""
