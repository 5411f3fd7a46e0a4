"""The processes a task starts: supervised so that none survives the task, with a clean environment, logged
with secrets masked, and stopped on an interrupt. Start with `process.run_program`.
"""
