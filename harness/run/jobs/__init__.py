"""One execution of one task on one machine: the job and its site, the context a check sees, the cards it
leases, and the outcome, whatever the check does. Start with `execute.execute`.
"""
