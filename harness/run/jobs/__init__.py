"""One execution of one task on one machine: `job` describes it, `task_context` is the interface for the
check, `task_cards` leases cards, and `execute` always produces an outcome. Start with `execute.execute`.
"""
