"""Container engines (Docker and podman) behind one protocol.

Start with `engine.py`, the protocol and its types. `image_layers.py` determines the layers of a cell's image,
`image_build.py` builds them, and `container_run.py` runs a command in a container.
"""
