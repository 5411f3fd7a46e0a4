"""Programs that run inside a cell: how the host starts one and reads how it ended (`program_run.py`, start
here), what the program reports of its device (`torch_device.py`), and operators that the simulated device
lacks (`unsimulated_operators.py`).
"""
