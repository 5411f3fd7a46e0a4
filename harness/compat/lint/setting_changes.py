"""Which one change of a word would correct a finding. Whether it does is tried (`script_fixes`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.compat.lint.lint_measurements import SettingChange
from harness.compat.lint.shell.values import ScriptValue

# Shorter words are not corrected, and only from LONG letters on two errors are.
SHORT, LONG = 3, 8


def key_change(override: ScriptValue, key: str, known: Sequence[str]) -> tuple[SettingChange, ...]:
    """The change of a key that verl does not have to the only one that is spelt like it."""
    if override.unknown and not override.text.startswith((key, f"+{key}", f"++{key}", f"~{key}")):
        return ()
    parent, _, last = key.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == parent}
    parents = {name.rpartition(".")[0]: name for name in known if name.rpartition(".")[2] == last}
    new = siblings.get(nearest_word(last, siblings)) or parents.get(nearest_word(parent, parents), "")
    return (_change(override, "key", key, key, new),) if new and new != key else ()


def without_plus(override: ScriptValue, key: str) -> tuple[SettingChange, ...]:
    """The change of `+key=value`, which adds a key, for a key that verl has."""
    return (_change(override, "key", key, f"+{key}", key),)


def value_change(setting: ScriptValue, name: str, new: str) -> tuple[SettingChange, ...]:
    """The change of a value that the script sets as a literal text. Quotes for Hydra stay."""
    old = _unquoted(setting.text)
    if setting.unknown or not old or not new or old == new:
        return ()
    return (_change(setting, "value", name, old, new),)


def misspelt_value(setting: ScriptValue, name: str, choices: Iterable[str]) -> tuple[SettingChange, ...]:
    """The change of a value to the only choice that is spelt like it."""
    return value_change(setting, name, nearest_word(_unquoted(setting.text), choices))


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def joined_words(setting: ScriptValue, key: str) -> tuple[SettingChange, ...]:
    """The change of `key= value` to `key=value`."""
    return (_change(setting, "space", key, "", ""),)


def nearest_word(word: str, choices: Iterable[str]) -> str:
    """The only choice that is at most one typing error away, in long words two; "" if there is none.

    A choice that is one error further away than another one does not count.
    """
    limit = 0 if len(word) < SHORT else 1 if len(word) < LONG else 2
    letters = set(word.lower())
    # Each letter that a choice lacks is an error, and so is each letter of the difference in length.
    near = [
        choice
        for choice in set(choices)
        if abs(len(choice) - len(word)) <= limit and len(letters.difference(choice.lower())) <= limit
    ]
    found = {choice: typing_errors(word.lower(), choice.lower(), limit) for choice in near}
    nearest = min(found.values(), default=limit + 1)
    best = [choice for choice, errors in found.items() if errors == nearest]
    return best[0] if nearest <= limit and len(best) == 1 else ""


def typing_errors(word: str, other: str, limit: int) -> int:
    """How many letters are missing, added, replaced or swapped with the next; `limit` + 1 for more.

    This is the distance of optimal string alignment.
    """
    if abs(len(word) - len(other)) > limit:
        return limit + 1
    before, row = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        older, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            errors = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == wanted:
                errors = min(errors, older[j - 2] + 1)
            row.append(errors)
        # A row begins from the last or, for swapped letters, from the one before it.
        if min(row) > limit and min(before) > limit:
            return limit + 1
    return min(row[-1], limit + 1)


def _change(setting: ScriptValue, part: str, name: str, old: str, new: str) -> SettingChange:
    return SettingChange(
        part="key" if part == "key" else "value" if part == "value" else "space",
        name=name,
        old=old,
        new=new,
        line=setting.where.line,
        column=setting.where.column,
    )
