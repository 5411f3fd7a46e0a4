"""A use of another package that its pinned version does not support."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class UseFinding:
    """A use that this version of the provider does not support.

    kind: one of
    - `missing`: an import or attribute of a name that does not exist.
    - `arguments`: a call whose arguments do not fit the signature.
    - `override`: the provider calls a method with arguments that the consumer's override does not accept.
    - `abstract`: a class with abstract methods that cannot be instantiated.
    - `lost-patch`: an assignment to a name that exists only in the version the consumer was written for.
    - `patch`: an assignment to another missing name, which some code reads.
    - `syntax`: a file that Python cannot parse with our patches.
    - `dead-patch`: an assignment to a missing name that no code reads.
    provider: name and version of the provider.
    name: the dotted name that is used.
    guarded, at_import: as in `Use`.
    breaks: whether the line fails when it runs.
    introduced: whether our patches add it; without them, the file has no such use.
    """

    kind: str
    file: str
    line: int
    provider: str
    name: str
    text: str
    guarded: str
    at_import: bool
    breaks: bool
    introduced: bool = False
