"""The check `npu-ops`: does the cell's torch_npu have the NPU operators that its packages call?

`operator_schema` reads the signatures from a torch_npu wheel, `operator_analysis` compares calls with them,
and `operator_check` fetches the packages and judges. Start with `operator_check.run`.
"""
