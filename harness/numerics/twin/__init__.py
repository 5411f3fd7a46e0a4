"""The check `twin`: ten steps of sampling and training on the device, compared with a float64 copy of the
same steps on the CPU. Start with `twin_check.py` (runs and judges, on the host), then `twin_program.py` (runs
inside the cell)."""
