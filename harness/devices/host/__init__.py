"""What this host has: NPU cards, driver, CANN, network, container engines, and what it can therefore run.

Start with `host_inspection.py`, which collects the facts. `host_findings.py` turns them into the report of
`npu-matrix doctor`.
"""
