"""Executes planned tasks and records their outcomes: `scheduling` decides which task runs when, `executors`
run jobs on this host or on a Ray cluster, `jobs` executes one task on one machine, `programs` starts and
supervises its processes. Start with `scheduling.scheduler.run_plan`.
"""
