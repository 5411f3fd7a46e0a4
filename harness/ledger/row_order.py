"""Which rows of the ledger count, in what order, and how one is replaced, as pieces of SQL."""

from __future__ import annotations

from harness.outcome import State

# Not the runs of a search (bisect, ablate, reruns), of parts of a plan or of cells nobody planned.
ASKED_FOR = """(argv = '[]' OR argv LIKE '%"run"%')"""
STARTED = "started DESC, rowid"
# An outcome recorded here outranks a merged one: its files (an environment, say) are on this machine.
LATEST_REUSABLE = (
    f"state = '{State.COMPLETED.value}' ORDER BY merged, CASE merged WHEN 0 THEN id ELSE finished END DESC"
)
# Times order what several machines recorded. Of what was recorded here the order is known, whatever the clock
# was set to meanwhile: nothing ended before what stands in front of it.
WHEN = "CASE merged WHEN 0 THEN max(finished) OVER (PARTITION BY merged ORDER BY id) ELSE finished END"
PUT_PLAN = (
    "INSERT INTO plans (digest, body) VALUES (?, ?) "
    "ON CONFLICT (digest) DO UPDATE SET body = excluded.body WHERE body != excluded.body"
)
