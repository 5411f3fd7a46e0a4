"""Container engines (Docker, podman, and one in memory for tests) behind one protocol.

Start with `engine.py`, the protocol and its types. `image_layers.py` says which layers the image of a cell
has, `image_build.py` builds them, and `container_run.py` runs a command in a container.
"""
