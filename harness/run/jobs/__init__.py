"""One execution of one task on one machine: `job` describes it, `task_context` is the interface for the
check, `task_cards` leases cards, `task_environment` verifies that the environment stays unchanged, and
`execute` always produces an outcome. Start with `execute.execute`.
"""
