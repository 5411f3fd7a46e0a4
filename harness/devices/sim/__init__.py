"""A simulated Ascend NPU: the real torch_npu on a fake CANN runtime. Runs inside a cell.

torch_npu's own Python and C++ run (lazy initialisation, caching allocator, streams, events, generators,
autocast, autograd formulas); only arithmetic is replaced, by CPU kernels on the same memory. Its outcomes say
nothing about the numerics, speed or formats of the hardware; `start/sim_probe.py` tells the two apart.

Start with `start/sim_launch.py`. On the host, `runtime_build/runtime_library.py` builds the runtime (it needs
a C compiler once) and `start/sim_environment.py` makes the environment of a cell's process. Inside the cell:

    python -m harness.devices.sim.start.sim_launch -m some.module ARGS        the program on npu:0
    VERL_USE_EXTERNAL_MODULES=harness.devices.sim.start.sim_plugin   the same in every process of verl

Environment (in addition to that of the runtime, see runtime_build/runtime/sim.h):
    NPU_SIM_FAULTS        faults to inject, see `faults/fault_spec.py`
    NPU_SIM_REPORT        file that gets a JSON line per process at its end: faults that hit
    NPU_SIM_COUNT_CALLS   1 puts counts of operator calls into that report
    NPU_SIM_RNG           `device` (default): random numbers follow the device's generators;
                          `host`: they come from torch's CPU generator, as in a run on the CPU
"""
