"""Reads the commands of a script that start vLLM's server, with the options of the job's own vLLM.

Read first: `server_findings`. `server_command` finds the commands, `option_source` reads which options a
release declares, with the types that `field_types` reads, and `server_parser` parses a command with them.
"""
