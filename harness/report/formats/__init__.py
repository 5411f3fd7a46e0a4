"""Renders the report's model in formats other than HTML: JSON with its schema, CSV, Markdown, the terminal,
badges and an Atom feed. Every module takes a `ReportModel`; start with `json_export`, which has every field.
"""
