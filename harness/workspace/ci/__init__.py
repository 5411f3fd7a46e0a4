"""Gates for the CI systems of other repositories, and jobs for hosts with NPUs.

Read `gate_pipelines.py` and `host_jobs.py`.
"""
