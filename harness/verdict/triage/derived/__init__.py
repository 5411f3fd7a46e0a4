"""Causes of failures that are computed from versions and published rules instead of being listed.

`failed_use` reads from an error message what one package expected of another, `logged_versions` collects the
versions that a log shows, `derived_cause` combines both. Start with `derived_signature.derive`.
"""
