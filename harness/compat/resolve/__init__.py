"""The check `resolve`: can the pins of a cell be installed together on its target platform?

`resolve_check` runs uv and judges what it found. `resolve_request` turns the facets into uv's input,
`resolve_problems` turns uv's failures into sentences and remedies, and `archive_metadata` looks for
requirements that uv does not enforce. Start with `resolve_check.run`.
"""
