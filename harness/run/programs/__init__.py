"""Starts the programs of a task: `process` runs them in a clean environment, `supervise` ensures that no
process survives the task, `task_log` writes their output with secrets masked, `interruption` handles signals.
Start with `process.run_program`.
"""
