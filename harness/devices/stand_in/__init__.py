"""A stand-in for a host with NPUs: its device nodes, npu-smi, driver files and CANN, in a mount namespace.

Start with `host_tree.py`, which writes the files of a stand-in into a folder. `enter_host.py` is the program
that mounts them in a namespace of its own and runs a command there, so that nothing outside is changed.
"""
