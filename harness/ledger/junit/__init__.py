"""JUnit XML: `junit_writer` writes results, `junit_merge` joins files of any test runner with bounded memory,
`junit_stream` parses them. Start with `junit_merge.merge_junit`.
"""
