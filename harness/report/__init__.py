"""Makes the report of a run: `model` arranges verdicts, outcomes and history into a `ReportModel`, `pages`
and `formats` render it, `query` searches its grid, and `publish` writes the folder. Start with
`model.report_model.build_model` and `publish.publish.render_all`.
"""
