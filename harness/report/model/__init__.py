"""The data behind every form of the report: `gather` joins plan, verdicts and ledger into `report_inputs`,
`report_model.build_model` makes the model that pages and formats render. Start there; the other modules add
history, changes, failure patterns and facts on patches.
"""
