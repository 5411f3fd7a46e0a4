"""Signatures of Python functions, read from syntax trees, and whether a call fits a signature."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class CallSignature:
    """The parameters of a function by kind.

    needed: parameters without a default. var_positional, var_keywords: whether it has `*args` and `**kwargs`.
    """

    positional_only: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    keyword_only: tuple[str, ...] = ()
    needed: frozenset[str] = frozenset()
    var_positional: bool = False
    var_keywords: bool = False

    def bound(self) -> CallSignature:
        """The signature of the bound method, which has no `self` or `cls`."""
        if self.positional_only:
            first, *rest = self.positional_only
            return replace(self, positional_only=tuple(rest), needed=self.needed - {first})
        if not self.positional:
            return self
        first, *rest = self.positional
        return replace(self, positional=tuple(rest), needed=self.needed - {first})

    def problem(self, call: CallArguments) -> str:
        """Why the call does not fit, or ""."""
        positional = (*self.positional_only, *self.positional)
        if call.positional > len(positional) and not self.var_positional:
            return f"takes {len(positional)} positional arguments, but {call.positional} are passed"
        given = set(positional[: call.positional])
        for keyword in call.keywords:
            if keyword in given and keyword not in self.positional_only:
                return f"gets {keyword!r} twice"
            if keyword not in (*self.positional, *self.keyword_only) and not self.var_keywords:
                return f"has no parameter {keyword!r}"
        if call.unpacks_positional or call.unpacks_keywords:
            return ""
        missing = [name for name in (*positional, *self.keyword_only) if name in self.needed - given]
        missing = [name for name in missing if name not in call.keywords or name in self.positional_only]
        return f"misses {', '.join(missing)}" if missing else ""

    def moved(self, call: CallArguments, before: CallSignature) -> str:
        """Which positional argument of a call gets another parameter than it got `before`, or "".

        Only where its old parameter is still there at another place: a renamed one gets the same value.
        """
        old = (*before.positional_only, *before.positional)[: call.positional]
        new = (*self.positional_only, *self.positional)
        elsewhere = {*new, *self.keyword_only}
        for number, (was, now) in enumerate(zip(old, new, strict=False), 1):
            if was != now and was in elsewhere:
                return f"takes {now!r} as positional argument {number}, which was {was!r}"
        return ""

    def __str__(self) -> str:
        def shown(name: str) -> str:
            return name if name in self.needed else f"{name}=..."

        parts = [shown(name) for name in self.positional_only]
        parts += ["/"] if self.positional_only else []
        parts += [shown(name) for name in self.positional]
        parts += ["*args"] if self.var_positional else ["*"] if self.keyword_only else []
        parts += [shown(name) for name in self.keyword_only]
        return f"({', '.join([*parts, *(['**kwargs'] if self.var_keywords else [])])})"


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """The arguments of a call.

    unpacks_positional, unpacks_keywords: whether it passes `*args` and `**kwargs`.
    """

    positional: int
    keywords: tuple[str, ...] = ()
    unpacks_positional: bool = False
    unpacks_keywords: bool = False


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> CallSignature:
    """The signature of a function definition."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = (
        {a.arg for a in positional[len(positional) - len(arguments.defaults) :]}
        if arguments.defaults
        else set()
    )
    optional |= {
        a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default
    }
    every = [*positional, *arguments.kwonlyargs]
    return CallSignature(
        positional_only=tuple(a.arg for a in arguments.posonlyargs),
        positional=tuple(a.arg for a in arguments.args),
        keyword_only=tuple(a.arg for a in arguments.kwonlyargs),
        needed=frozenset(a.arg for a in every if a.arg not in optional),
        var_positional=arguments.vararg is not None,
        var_keywords=arguments.kwarg is not None,
    )


def arguments_of(call: ast.Call) -> CallArguments:
    """The arguments of a call."""
    return CallArguments(
        positional=sum(not isinstance(a, ast.Starred) for a in call.args),
        keywords=tuple(keyword.arg for keyword in call.keywords if keyword.arg),
        unpacks_positional=any(isinstance(a, ast.Starred) for a in call.args),
        unpacks_keywords=any(keyword.arg is None for keyword in call.keywords),
    )
