"""Runtime patches (monkey patches): find them in source code and check that their targets still exist
upstream.

Start with `monkey_patches.py`; `target_registry.py` records the targets of every version.
"""
