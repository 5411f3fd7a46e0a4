"""A simulated Ascend NPU: the real torch_npu on a fake CANN runtime. Runs inside a cell.

torch_npu's own Python and C++ run (lazy initialisation, caching allocator, streams, events, generators,
autocast, autograd formulas); only arithmetic is replaced, by CPU kernels on the same memory. It says nothing
of the numerics, speed or formats of the hardware, and whatever runs here carries the sentinel.

Host side, standard library only: `build.build_runtime` (needs a C compiler once), `runtime_env`.
Either side: `probe`, `faultspec`. Cell side:

    python -m harness.devices.sim.start.sim_launch -m some.module ARGS        the program on npu:0
    VERL_USE_EXTERNAL_MODULES=harness.devices.sim.start.sim_plugin   the same in every process of verl

Environment (beside that of the runtime, see runtime/sim.h):
    NPU_SIM_FAULTS        faults to inject, see `faultspec`
    NPU_SIM_REPORT        file that gets a JSON line per process at its end: faults that hit
    NPU_SIM_COUNT_CALLS   1 puts counts of operator calls into that report
    NPU_SIM_RNG           `device` (default): random numbers follow the device's generators;
                          `host`: they come from torch's CPU generator, as in a run on the CPU
"""
