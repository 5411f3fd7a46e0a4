"""Checks over cells, keyed by content."""
