"""A simulated Ascend NPU: the real torch_npu on a fake CANN runtime. Runs inside a cell.

torch_npu's own Python and C++ code runs: lazy initialisation, caching allocator, streams, events, generators,
autocast and autograd formulas. Only the arithmetic is replaced, by CPU kernels on the same memory. Outcomes
on the simulated device therefore say nothing about the numerics, speed or formats of the hardware.
`start/sim_probe.py` tells the simulated device from a real one.

Start with `start/sim_launch.py`. On the host, `runtime_build/runtime_library.py` builds the runtime, for
which it needs a C compiler, and `start/sim_environment.py` returns the environment variables of a cell's
process. Inside the cell:

    python -m harness.devices.sim.start.sim_launch -m some.module ARGS   runs a program with the device npu:0
    VERL_USE_EXTERNAL_MODULES=harness.devices.sim.start.sim_plugin       installs it in every process of verl

Environment variables, in addition to those of the runtime (see runtime_build/runtime/sim.h):
    NPU_SIM_FAULTS        faults to inject, see `faults/fault_spec.py`
    NPU_SIM_REPORT        file to which each process appends JSON lines: calls that torch_npu may refuse,
                          and when it ends the injected faults
    NPU_SIM_COUNT_CALLS   1 adds the number of calls of each operator to that report
    NPU_SIM_RNG           `device` (default) takes random numbers from the device's generators,
                          `host` from torch's CPU generator, as in a run on the CPU
"""
