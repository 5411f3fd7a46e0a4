"""Where jobs run: in threads of this process (`executor`) or on the nodes of a Ray cluster (`ray_executor`,
with `shipment` for jobs and files, `quarantine` for hosts that keep failing). Start with the protocol
`executor.Executor`.
"""
