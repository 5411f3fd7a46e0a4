"""Mutants of Python functions, made mechanically from their syntax trees."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

Change = tuple[str, ast.AST | None]
"""Name of the operator, and what replaces the node; None deletes a statement."""

Operator = tuple[type[ast.AST] | tuple[type[ast.AST], ...], Callable[..., Iterator[Change]]]
"""The nodes that an operator changes, and its changes of one."""

LOGGING = ("logger", "print", "warnings", "log_gpu_memory_usage")
OPPOSITE: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OTHER_NAME = {
    "max": "min",
    "min": "max",
    "maximum": "minimum",
    "minimum": "maximum",
    "sum": "mean",
    "mean": "sum",
    "exp": "expm1",
    "float32": "bfloat16",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
}
DROPPED_METHODS = (
    *("detach", "float", "bool", "clamp", "clamp_", "exp", "neg", "abs", "roll"),
    *("to", "squeeze", "div_", "mul_"),
)
DROPPED_FUNCTIONS = ("clamp", "roll", "exp", "where", "masked_mean", "maximum", "minimum", "max", "min")
UNSEEN_ARGUMENTS = ("device", "strict")
"""Arguments that are neither changed nor dropped: the benchmark runs on CPUs; lists of different lengths are
only refused."""
SYMMETRIC = ("maximum", "minimum", "max", "min", "transpose", "isinstance", "hasattr", "getattr", "get")
"""Functions whose first two arguments have no order, or that only raise if they are swapped."""
FACTOR = 1.1
LONGEST_CODE = 200


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed place. before, after: its source. place: number of the change inside of the function.
    statement, code: the line in which its statement begins, and the first line of its source. more: it was
    made by one of the operators of `MORE_CHANGES`."""

    file: str
    function: str
    place: int
    line: int
    statement: int
    operator: str
    before: str
    after: str
    code: str = ""
    more: bool = False

    @property
    def key(self) -> str:
        """Names the mutant in all releases that have the same source there."""
        return f"{self.file} {self.function} {self.operator}: {self.before} -> {self.after}"

    @property
    def number(self) -> int:
        """A number that depends on the key only, to split mutants into halves."""
        return _number(self.key)

    def drawn(self, draw: int) -> int:
        """The place of the mutant in an order of which samples are the first mutants. draw: its number."""
        return _number(f"{draw} {self.key}") if draw else self.number // 2

    @property
    def is_looked_at(self) -> bool:
        """Whether the mutant belongs to the half whose survivors may be read while the checks are changed."""
        return self.more or self.number % 2 == 0


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def mutants(
    source: str, file: str, functions: Iterable[str], skipped: Iterable[str] = (), *, more: bool = False
) -> Iterator[Mutant]:
    """All mutants of the functions that the source has. skipped: texts of conditions whose branches are left
    out. more: those of the operators of `MORE_CHANGES` instead of `CHANGES`."""
    tree = ast.parse(source)
    for name in functions:
        function = find_function(tree, name)
        begin, code = 0, ""
        statements = _statements(function) if function else {}
        changes = _changes(function, tuple(skipped), more=more) if function else ()
        for place, (node, operator, after) in enumerate(changes):
            begin, code = statements.get(id(node), (begin, code))
            yield Mutant(
                file=file,
                function=name,
                place=place,
                line=getattr(node, "lineno", begin),
                statement=begin,
                operator=operator,
                before=_text(node),
                after=_text(after) if after is not None else "",
                code=code,
                more=more,
            )


def mutated(source: str, mutant: Mutant, skipped: Iterable[str] = ()) -> ast.Module:
    """The tree of the file with the mutant."""
    tree = ast.parse(source)
    function = find_function(tree, mutant.function)
    if function is None:
        raise LookupError(f"{mutant.file} has no {mutant.function}")
    node, _, after = list(_changes(function, tuple(skipped), more=mutant.more))[mutant.place]
    replacement = ast.Pass() if after is None else after

    class Replace(ast.NodeTransformer):
        def visit(self, one: ast.AST) -> ast.AST:
            return ast.copy_location(replacement, node) if one is node else self.generic_visit(one)

    Replace().visit(tree)
    return ast.fix_missing_locations(tree)


def find_function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """The function or method of that qualified name."""
    body: list[ast.stmt] = tree.body
    *owners, last = name.split(".")
    for owner in owners:
        body = next((one.body for one in body if isinstance(one, ast.ClassDef) and one.name == owner), [])
    return next((one for one in body if isinstance(one, ast.FunctionDef) and one.name == last), None)


def _statements(function: ast.FunctionDef) -> dict[int, tuple[int, str]]:
    """The innermost statement of each node of a function, by the node's id: its line and its first line."""
    found = {}
    for statement in (one for one in ast.walk(function) if isinstance(one, ast.stmt)):
        header = statement
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            header = copy.copy(statement)
            header.body = [ast.Pass()]
        code = " ".join(ast.unparse(header).removesuffix("pass").split())[:LONGEST_CODE]
        # Walking is from the outside to the inside, so inner statements replace outer ones.
        found.update({id(one): (statement.lineno, code) for one in ast.walk(statement)})
    return found


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:90]


def _changes(
    function: ast.FunctionDef, skipped: tuple[str, ...], *, more: bool
) -> Iterator[tuple[ast.AST, str, ast.AST | None]]:
    signs = [one for one in ast.walk(function) if isinstance(one, ast.UnaryOp)]
    unchanged = {id(one.operand) for one in signs if isinstance(one.operand, ast.Constant)}
    arguments = [one for one in ast.walk(function) if isinstance(one, ast.keyword)]
    unchanged |= {id(one.value) for one in arguments if one.arg in UNSEEN_ARGUMENTS}
    reported = _only_reported(function)
    others = _similar_names(function, reported) if more else {}
    names: Operator = (ast.Name, partial(_of_name, others))
    table = (*MORE_CHANGES, names) if more else CHANGES
    for node in _visited(function.body, skipped, reported):
        # A negative number is changed with its sign.
        for operator, after in _changes_of(node, table) if id(node) not in unchanged else ():
            yield node, operator, after


def _visited(body: list[ast.stmt], skipped: tuple[str, ...], reported: set[str]) -> Iterator[ast.AST]:
    """The nodes of statements that decide what is computed."""
    for statement in body:
        if isinstance(statement, (ast.Assert, ast.Raise, ast.Import, ast.ImportFrom)):
            continue
        if _only_reports(statement, reported) or _is_guard(statement):
            continue
        condition = ast.unparse(statement.test) if isinstance(statement, ast.If) else ""
        if isinstance(statement, ast.If) and any(text in condition for text in skipped):
            usual = statement.body if condition.startswith("not ") else statement.orelse
            yield from _visited(usual, skipped, reported)
            continue
        if _is_of_other_feature(statement, skipped):
            continue
        if isinstance(statement, ast.If) and [type(one) for one in statement.orelse] == [ast.Raise]:
            # The condition only refuses what is not supported.
            yield from _visited(statement.body, skipped, reported)
            continue
        yield statement
        if isinstance(statement, ast.If):
            yield from ast.walk(statement.test)
            yield from _visited(statement.body, skipped, reported)
            yield from _visited(statement.orelse, skipped, reported)
        elif isinstance(statement, (ast.For, ast.While, ast.With, ast.Try)):
            for part in ("iter", "test", "items"):
                found = getattr(statement, part, [])
                for one in found if isinstance(found, list) else [found]:
                    yield from ast.walk(one)
            for part in ("body", "orelse", "finalbody"):
                yield from _visited(getattr(statement, part, []), skipped, reported)
        elif isinstance(statement, ast.FunctionDef):
            yield from _visited(statement.body, skipped, reported)
        else:
            yield from (node for node in ast.walk(statement) if node is not statement)


def _only_reports(statement: ast.stmt, reported: set[str]) -> bool:
    """Whether a statement changes nothing but metrics and logs, or is a branch that does not."""
    if isinstance(statement, ast.If):
        inner = [*statement.body, *statement.orelse]
        return all(isinstance(one, ast.Assert) or _only_reports(one, reported) for one in inner)
    return _is_reporting(statement, reported) or _is_text(statement)


def _is_of_other_feature(statement: ast.stmt, skipped: tuple[str, ...]) -> bool:
    """Whether a variable is assigned that is named after the feature, or whose value depends on it."""
    if not isinstance(statement, ast.Assign):
        return False
    value = statement.value
    texts = [*_assigned(statement), ast.unparse(value.test) if isinstance(value, ast.IfExp) else ""]
    return any(text in one for text in skipped for one in texts)


def _is_guard(statement: ast.stmt) -> bool:
    """Whether the statement only refuses invalid arguments."""
    return isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[0], ast.Raise)


def _is_text(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr):
        return False
    if isinstance(statement.value, ast.Constant):
        return True
    called = statement.value.func if isinstance(statement.value, ast.Call) else None
    return called is not None and ast.unparse(called).split(".")[0] in LOGGING


def _assigned(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        # metrics.update(...), append_to_dict(metrics, ...)
        call = statement.value
        owner = call.func.value if isinstance(call.func, ast.Attribute) else (call.args or [call.func])[0]
        return [owner.id] if isinstance(owner, ast.Name) else []
    else:
        return []
    flat: list[ast.expr] = []
    for target in targets:
        flat += target.elts if isinstance(target, ast.Tuple) else [target]
    while any(isinstance(one, (ast.Subscript, ast.Attribute)) for one in flat):
        flat = [one.value if isinstance(one, (ast.Subscript, ast.Attribute)) else one for one in flat]
    return [one.id if isinstance(one, ast.Name) else "?" for one in flat]


def _is_reporting(statement: ast.stmt, reported: set[str]) -> bool:
    names = _assigned(statement)
    return bool(names) and all(name in reported for name in names)


def _only_reported(function: ast.FunctionDef) -> set[str]:
    """Variables that reach nothing but metrics: a backward slice over assignments."""
    names = {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}
    reported = {name for name in names if "metric" in name.lower()}
    statements = [one for one in ast.walk(function) if isinstance(one, ast.stmt)]
    while True:
        used: set[str] = set()
        assigned: set[str] = set()
        for one in statements:
            assigned.update(_assigned(one) if isinstance(one, (ast.Assign, ast.AugAssign)) else ())
            if _only_reports(one, reported):
                continue
            own = [child for child in ast.iter_child_nodes(one) if not isinstance(child, ast.stmt)]
            for child in own:
                used.update(
                    part.id
                    for part in ast.walk(child)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
                )
        more = {name for name in assigned - used - reported if name != "?"}
        if not more:
            return reported
        reported |= more


def _changes_of(node: ast.AST, table: Iterable[Operator]) -> Iterator[Change]:
    for kind, change in table:
        if isinstance(node, kind):
            for operator, after in change(node):
                if after is None or ast.dump(after) != ast.dump(node):
                    yield operator, after


def _of_binary(node: ast.BinOp) -> Iterator[Change]:
    opposite = OPPOSITE.get(type(node.op))
    if opposite:
        yield "sign", _with(node, op=opposite())
    if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitAnd)):
        yield "dropped term", copy.deepcopy(node.left)
    if isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd)):
        yield "dropped term", copy.deepcopy(node.right)


def _of_unary(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        for operator, after in _of_constant(node.operand):
            yield operator, _with(node, operand=after)
    elif isinstance(node.op, (ast.USub, ast.Not)):
        yield "sign" if isinstance(node.op, ast.USub) else "comparison", copy.deepcopy(node.operand)


def _of_comparison(node: ast.Compare) -> Iterator[Change]:
    opposite = OPPOSITE.get(type(node.ops[0]))
    if opposite and len(node.ops) == 1:
        yield "comparison", _with(node, ops=[opposite()])


def _of_boolean(node: ast.BoolOp) -> Iterator[Change]:
    yield "comparison", _with(node, op=OPPOSITE[type(node.op)]())


def _of_constant(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
    elif isinstance(value, float):
        yield "constant", ast.Constant(value * FACTOR if value else 1.0)


def _of_slice(node: ast.Slice) -> Iterator[Change]:
    for part in ("lower", "upper"):
        bound = getattr(node, part)
        if bound is not None and not isinstance(bound, ast.Constant):
            for operator in (ast.Add, ast.Sub):
                shifted = ast.BinOp(copy.deepcopy(bound), operator(), ast.Constant(1))
                yield "shift by one", _with(node, **{part: shifted})
    if node.lower is None and node.upper is not None:
        yield "shift by one", _with(node, lower=ast.Constant(1))
    if node.upper is None and node.lower is not None:
        yield "shift by one", _with(node, upper=ast.Constant(-1))


def _of_call(node: ast.Call) -> Iterator[Change]:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    starred = any(isinstance(one, ast.Starred) for one in node.args[:2])
    if len(node.args) >= 2 and not starred and name not in SYMMETRIC:
        yield "swapped arguments", _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
    yield from _swapped_keywords(node)
    if isinstance(called, ast.Attribute) and called.attr in DROPPED_METHODS and not _is_module(called.value):
        yield ("detach" if called.attr == "detach" else "dropped call"), copy.deepcopy(called.value)
    if name in DROPPED_FUNCTIONS and node.args:
        yield "dropped call", copy.deepcopy(node.args[0])


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"torch", "np", "F", "tu", "verl_F"}


def _swapped_keywords(node: ast.Call) -> Iterator[Change]:
    """Two neighbouring arguments that are both variables get each other's value."""
    for place in range(len(node.keywords) - 1):
        first, second = node.keywords[place : place + 2]
        if (
            isinstance(first.value, ast.Name)
            and isinstance(second.value, ast.Name)
            and first.arg
            and second.arg
        ):
            keywords = list(node.keywords)
            keywords[place] = ast.keyword(first.arg, second.value)
            keywords[place + 1] = ast.keyword(second.arg, first.value)
            yield "swapped arguments", _with(node, keywords=keywords)


def _of_keyword(node: ast.keyword) -> Iterator[Change]:
    value = node.value
    number = value.operand if isinstance(value, ast.UnaryOp) else value
    if node.arg in {"dim", "axis", "dims"} and isinstance(number, ast.Constant):
        yield "axis", ast.keyword(node.arg, ast.Constant(0 if ast.unparse(value) != "0" else -1))


def _of_attribute(node: ast.Attribute) -> Iterator[Change]:
    if node.attr in OTHER_NAME and isinstance(node.ctx, ast.Load):
        operator = "dtype" if node.attr == "float32" else "function"
        yield operator, _with(node, attr=OTHER_NAME[node.attr])


def _of_if(node: ast.If) -> Iterator[Change]:
    yield "condition", _with(node, test=ast.Constant(True))
    yield "condition", _with(node, test=ast.Constant(False))


def _of_expression(node: ast.IfExp) -> Iterator[Change]:
    yield "condition", copy.deepcopy(node.body)
    yield "condition", copy.deepcopy(node.orelse)


def _of_statement(_node: ast.stmt) -> Iterator[Change]:
    yield "dropped statement", None


CHANGES: tuple[Operator, ...] = (
    (ast.BinOp, _of_binary),
    (ast.UnaryOp, _of_unary),
    (ast.Compare, _of_comparison),
    (ast.BoolOp, _of_boolean),
    (ast.Constant, _of_constant),
    (ast.Slice, _of_slice),
    (ast.Call, _of_call),
    (ast.keyword, _of_keyword),
    (ast.Attribute, _of_attribute),
    (ast.If, _of_if),
    (ast.IfExp, _of_expression),
    ((ast.Expr, ast.AugAssign, ast.Assign), _of_statement),
)


REVERSED: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
}
OTHER_METHOD = {
    "cumsum": "cumprod",
    "repeat_interleave": "repeat",
    "argsort": "argmax",
    "log_softmax": "softmax",
    "softmax": "log_softmax",
    "any": "all",
    "all": "any",
    "offsets": "lengths",
    "extend": "append",
    "std": "var",
    "median": "mean",
    "ge": "gt",
    "gt": "ge",
    "le": "lt",
    "lt": "le",
    "eval": "train",
    "train": "eval",
    "pop": "get",
}


def _of_reversed_comparison(node: ast.Compare) -> Iterator[Change]:
    opposite = REVERSED.get(type(node.ops[0]))
    if opposite and len(node.ops) == 1:
        yield "reversed comparison", _with(node, ops=[opposite()])


def _of_other_constant(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if value not in {0, 1}:
        yield "constant", ast.Constant(value / 2 if isinstance(value, float) else value - 1)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value - 1) if value else ast.UnaryOp(ast.USub(), ast.Constant(1))


def _of_arguments(node: ast.Call) -> Iterator[Change]:
    called = node.func
    for place, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in UNSEEN_ARGUMENTS:
            yield "dropped argument", _with(node, keywords=node.keywords[:place] + node.keywords[place + 1 :])
    if len(node.args) > 1 and not any(isinstance(one, ast.Starred) for one in node.args):
        yield "dropped argument", _with(node, args=node.args[:-1])
    if len(node.args) > 2 and not any(isinstance(one, ast.Starred) for one in node.args):
        yield "swapped arguments", _with(node, args=[*node.args[:-2], node.args[-1], node.args[-2]])
    if isinstance(called, ast.Attribute) and called.attr in OTHER_METHOD:
        yield "function", _with(node, func=_with(called, attr=OTHER_METHOD[called.attr]))


def _of_loop(node: ast.For) -> Iterator[Change]:
    yield "loop", _with(node, body=[*node.body, ast.Break()])
    listed = ast.Call(ast.Name("list", ast.Load()), [copy.deepcopy(node.iter)], [])
    rest = ast.Subscript(listed, ast.Slice(ast.Constant(1), None, None), ast.Load())
    yield "loop", _with(node, iter=rest)
    backwards = ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1)))
    yield "loop", _with(node, iter=ast.Subscript(listed, backwards, ast.Load()))


def _of_comprehension(node: ast.ListComp) -> Iterator[Change]:
    backwards = ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1)))
    yield "order", ast.Subscript(copy.deepcopy(node), backwards, ast.Load())


def _of_update(node: ast.AugAssign) -> Iterator[Change]:
    opposite = OPPOSITE.get(type(node.op))
    if opposite:
        yield "sign", _with(node, op=opposite())
    target = copy.deepcopy(node.target)
    yield "dropped term", ast.Assign([target], copy.deepcopy(node.value), lineno=node.lineno)


def _of_return(node: ast.Return) -> Iterator[Change]:
    found = node.value
    if isinstance(found, (ast.Name, ast.BinOp, ast.Call)):
        yield (
            "scaled result",
            _with(node, value=ast.BinOp(copy.deepcopy(found), ast.Mult(), ast.Constant(FACTOR))),
        )
    elif isinstance(found, ast.Tuple) and len(found.elts) > 1:
        first = ast.BinOp(copy.deepcopy(found.elts[0]), ast.Mult(), ast.Constant(FACTOR))
        yield "scaled result", _with(node, value=_with(found, elts=[first, *found.elts[1:]]))


def _of_assignment(node: ast.Assign) -> Iterator[Change]:
    if isinstance(node.value, (ast.BinOp, ast.Call)) and isinstance(node.targets[0], ast.Name):
        scaled = ast.BinOp(copy.deepcopy(node.value), ast.Mult(), ast.Constant(FACTOR))
        yield "scaled result", _with(node, value=scaled)


def _of_index(node: ast.Subscript) -> Iterator[Change]:
    if isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
        yield "shift by one", _with(node, slice=ast.BinOp(node.slice, ast.Sub(), ast.Constant(1)))


def _of_name(others: Mapping[str, tuple[str, ...]], node: ast.Name) -> Iterator[Change]:
    if isinstance(node.ctx, ast.Load):
        for other in others.get(node.id, ()):
            yield "other variable", ast.Name(other, ast.Load())


def _similar_names(function: ast.FunctionDef, reported: set[str]) -> dict[str, tuple[str, ...]]:
    """The variables of a function -> others that have a word of their name in common, which a slip may
    confuse; at most two."""
    parameters = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
    stored = [
        one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]
    names = sorted({*parameters, *stored} - reported - {"self"})
    words = {name: {one.rstrip("s") for one in name.split("_") if len(one) > 2} for name in names}
    return {
        name: tuple(other for other in names if other != name and words[name] & words[other])[:2]
        for name in names
    }


MORE_CHANGES: tuple[Operator, ...] = (
    (ast.Compare, _of_reversed_comparison),
    (ast.Constant, _of_other_constant),
    (ast.Call, _of_arguments),
    (ast.For, _of_loop),
    (ast.ListComp, _of_comprehension),
    (ast.AugAssign, _of_update),
    (ast.Return, _of_return),
    (ast.Assign, _of_assignment),
    (ast.Subscript, _of_index),
)
"""Operators added later; all of their mutants may be looked at. Neither half has them."""


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
