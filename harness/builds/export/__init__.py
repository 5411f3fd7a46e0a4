"""A cell's lock as files that people install from, and the bill of materials of its image.

Start with `export_formats.py`, which lists the formats: requirements file, script, Dockerfile, conda
environment, compose and bake files, dev container, Kubernetes Job, Markdown and JSON.
"""
