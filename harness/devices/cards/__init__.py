"""The NPU cards of this host: exclusive leases among its processes, and passing cards into containers.

Start with `card_leases.py`. `device_nodes.py` lists the device nodes and driver files that a container needs.
"""
