"""A simulated Ascend NPU: the real torch_npu on a fake CANN runtime. Runs inside a cell."""
