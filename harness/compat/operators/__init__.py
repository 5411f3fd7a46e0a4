"""The check `npu-ops`: does the cell's torch_npu have the NPU operators that its packages call?

`operator_analysis` compares calls with the schemas of a torch_npu wheel (`compat.surface.operator_schema`),
and `operator_check` fetches the packages and judges. Start with `operator_check.run`.
"""
