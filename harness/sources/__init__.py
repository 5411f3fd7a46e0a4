"""Upstream trees by content."""
