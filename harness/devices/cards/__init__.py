"""The NPU cards of this host: exclusive leases among its processes, and passing cards into containers.

Start with `card_leases.py`; `device_nodes.py` says what a container needs to see a card.
"""
