"""The files of an environment: what they must be according to the lock, and whether they still are.

`harness.cell_program.installed_records` compares them with the RECORD files and the patches when the
environment is built. `file_manifest` then stores the state and the digest of each, and compares them again
at any later time.
"""
