"""A cell's lock as files that people install from, and the bill of materials of its image.

Start with `lock_formats.py`: requirements file, script, Dockerfile, conda environment, Markdown and JSON.
"""
