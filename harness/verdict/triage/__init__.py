"""Finds known failures in logs: a catalogue of signatures with causes and remedies, and the root cause among
the matches. Start with `diagnosis.triage_file`; `catalogue` reads the signatures.
"""
