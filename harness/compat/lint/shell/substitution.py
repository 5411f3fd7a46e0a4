"""What `$(...)` and redirected documents expand to, as far as it is known without executing anything."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from harness.compat.lint.shell.expansion import Expander
from harness.compat.lint.shell.syntax_tree import SyntaxNode
from harness.compat.lint.shell.values import Expansion
from harness.compat.lint.shell.world import World

#: How often a loop is read. `seq` makes at most one number more, so that a loop over them notes the rest.
MAX_ITERATIONS = 200


def command_output(statement: SyntaxNode, world: World, expander: Expander) -> Expansion | None:
    """The output of the command in `$(...)` for a few commands without effects; None for others."""
    command = statement.child("Cmd")
    if command is None:
        return None
    if command.kind == "BinaryCmd" and command.text("Op") == "&&":
        return _changed_folder(command, world, expander)
    if command.kind != "CallExpr" or command.children("Assigns"):
        return None
    words = expander.all_fields(command.children("Args"), world)
    if not words or any(word.unknown for word in words):
        return None
    name, rest = words[0].text, [word.text for word in words[1:]]
    if name == "cat" and not rest:
        document = document_text(statement.children("Redirs"), world, expander)
        return Expansion(text=document.text.rstrip("\n"), unknown=document.unknown) if document else None
    if name == "conda" and rest[:1] and rest[0].startswith("shell."):
        # The hook defines conda's own functions.
        return Expansion(text="")
    if name == "echo" and not any(one.startswith("-") for one in rest):
        return Expansion(text=" ".join(rest))
    if name == "basename" and rest:
        found = posixpath.basename(rest[0].rstrip("/"))
        return Expansion(text=found.removesuffix(rest[1]) if len(rest) > 1 else found)
    if name == "dirname" and len(rest) == 1:
        folder = posixpath.dirname(rest[0].rstrip("/"))
        return Expansion(text=folder or ("/" if rest[0].startswith("/") else "."))
    if name == "seq" and 1 <= len(rest) <= 2 and all(one.isdigit() for one in rest):
        first, last = (1, int(rest[0])) if len(rest) == 1 else (int(rest[0]), int(rest[1]))
        return Expansion(text="\n".join(map(str, range(first, min(last, first + MAX_ITERATIONS) + 1))))
    return None


def _changed_folder(command: SyntaxNode, world: World, expander: Expander) -> Expansion | None:
    """`$(cd FOLDER && pwd)`: the folder."""
    texts = []
    for side in ("X", "Y"):
        statement = command.child(side)
        call = statement.child("Cmd") if statement is not None else None
        if call is None or call.kind != "CallExpr":
            return None
        texts.append(expander.all_fields(call.children("Args"), world))
    before, after = ([word.text for word in words] for words in texts)
    if len(before) >= 2 and before[0] == "cd" and after[:1] == ["pwd"] and not texts[0][-1].unknown:
        return Expansion(text=before[-1])
    return None


def document_text(redirections: Sequence[SyntaxNode], world: World, expander: Expander) -> Expansion | None:
    """The document or string that is redirected to the input of a command (`<<EOF`, `<<<`), or None."""
    for redirection in redirections:
        body = redirection.child("Hdoc")
        if body is not None:
            return expander.text(body, world)
        if redirection.text("Op") == "<<<":
            return expander.text(redirection.child("Word"), world)
    return None
