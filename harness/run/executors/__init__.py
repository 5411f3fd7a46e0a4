"""Runs jobs in threads of this process (`executor`) or on the nodes of a Ray cluster (`ray_executor`;
`shipment` packs jobs and files, `quarantine` pauses hosts that keep failing). Start with the protocol
`executor.Executor`.
"""
