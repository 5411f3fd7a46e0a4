"""The append-only store of outcomes, runs and artifacts in a state folder. Start with `store.Ledger`;
`outcome_record`, `plan_record` and `run_record` say what its rows hold, `run_rows` how runs are queried, and
`database` and `ledger_schema` how the SQLite file is opened, repaired and migrated.
"""
