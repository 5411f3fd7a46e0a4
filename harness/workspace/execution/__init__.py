"""Runs tasks on this machine for commands: a run, a rerun, a bisection, an ablation of patches, a probe
of versions, the recording of reference sets. Start with `run_setup.py`.
"""
