"""Finds the cause of a failure in a log, by a catalogue of signatures with causes and remedies. Start with
`diagnosis.triage_file`; `catalogue` reads the signatures, `log_scan` reads a log.
"""
