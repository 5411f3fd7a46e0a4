"""Executes planned tasks and records their outcomes: `scheduling` decides what runs when, `executors` run
jobs on this host or on a Ray cluster, `jobs` is one task on one machine, `programs` are the processes it
starts. Start with `scheduling.scheduler.run_plan`.
"""
