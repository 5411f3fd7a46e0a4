"""JUnit XML: written from results, read from any test runner, and merged with bounded memory. Start with
`junit_files`; `junit_stream` parses, `junit_merge` joins files.
"""
