"""Versions with shortened commits, as far as different versions stay different."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

#: A version with a whole commit after `@` or `+`, or a commit alone.
_COMMIT = re.compile(r"(.*[@+]|)([0-9a-f]{9,64})")
SHORTEST = 7


def short_versions(versions: Iterable[str]) -> dict[str, str]:
    """Version -> its short form, for those that have one. No two versions have the same form."""
    distinct = set(versions)
    commits = {version: found for version in distinct if (found := _COMMIT.fullmatch(version))}
    short: dict[str, str] = {}
    length = SHORTEST
    pending = set(commits)
    while pending and length <= 64:
        forms = {version: commits[version][1] + commits[version][2][:length] for version in pending}
        shared = Counter(forms.values())
        taken = (distinct - pending) | set(short.values())
        done = {version for version in pending if shared[forms[version]] == 1 and forms[version] not in taken}
        short |= {version: forms[version] for version in done if forms[version] != version}
        pending -= done
        length += 4
    return short
