"""Patches: parsed, applied whole or not at all, classified."""
