"""`advise` for A2 and A3 against every row that vllm-ascend and verl publish for CANN 8.2 and later.

For each row, `advise` is asked for a host with the row's CANN and for the row's release. Its first answer is
right if it has every version that the row lists, or names the requirement of a package that overrules it;
wrong if it has another version and does not say so. The rival answers with the newest row of the table for
every host, as `pip install` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.figures import ROOT, Figure
from harness.matrix.model.constraints import Condition, allows, published_specifiers
from harness.matrix.model.versions import Scheme, Version, parse_specifier, parse_version
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.plan.feasibility.stack_advice import AdviceRequest, AdvisedStack, Statement, advise_stacks

OLDEST = parse_version(Scheme.CANN, "8.2.RC1")
SOCS = ("a2", "a3")
#: Table -> what a user with such a stack asks for.
TABLES = {"vllm-ascend": ("vllm",), "verl-quickstart": ("gspo", "vllm")}
COMPARED = ("vllm_ascend", "vllm", "torch", "torch_npu", "python", "triton_ascend")
#: Releases of CANN for which images exist, also those that no row names.
HOSTS = ("8.2.RC1", "8.2.RC2", "8.3.RC1", "8.3.RC2", "8.5.0", "8.5.1", "8.5.2", "9.0.0", "9.0.1", "9.1.0")


def published_rows(matrix: Matrix, table: str) -> list[dict[str, str]]:
    """The rows that name a release and a CANN that is new enough."""
    found = matrix.published[table]
    rows = []
    for row in found.rows:
        fields = {name: text for name, text in zip(found.columns, row, strict=True) if text}
        try:
            parse_version(Scheme.PEP440, fields[found.key])
            is_old = parse_version(Scheme.CANN, fields["cann"]) < OLDEST
        except (ValueError, KeyError):
            continue
        if not is_old:
            rows.append(fields)
    return rows


def agrees(matrix: Matrix, axis: str, text: str, version: Version, overruled: Sequence[Statement]) -> bool:
    """Whether a version is what a field lists, or the answer says what overrules the field."""
    specifiers = published_specifiers(matrix.axes[axis].scheme, text)
    if not specifiers or any(allows(one, version) in (True, None) for one in specifiers):
        return True
    return any(one.axis == axis and one.text == text for one in overruled)


def answer(matrix: Matrix, soc: str, row: Mapping[str, str], table: str) -> tuple[str, AdvisedStack | None]:
    """`right`, `wrong` or `none`, and the answer."""
    key = matrix.published[table].key
    release = Condition(axis=key, specifiers=(parse_specifier(Scheme.PEP440, row[key]),))
    request = AdviceRequest(soc=soc, cann=row["cann"], needs=TABLES[table], conditions=(release,))
    stacks = advise_stacks(matrix, request).stacks
    if not stacks:
        return "none", None
    is_right = all(
        agrees(matrix, axis, row[axis], stacks[0].axes[axis], stacks[0].overruled)
        for axis in COMPARED
        if axis in row and axis in stacks[0].axes
    )
    return ("right" if is_right else "wrong"), stacks[0]


def newest_row(matrix: Matrix, rows: Sequence[Mapping[str, str]], key: str) -> Mapping[str, str]:
    """The row of the newest release."""
    return max(rows, key=lambda row: matrix.axes[key].parse(row[key]).order or ())


def figures() -> Iterator[Figure]:
    """Right, wrong and missing answers for each table and SoC."""
    matrix = load_matrix(ROOT / "matrix.yaml")
    for table in TABLES:
        rows = published_rows(matrix, table)
        key = matrix.published[table].key
        newest = newest_row(matrix, rows, key)
        for soc in SOCS:
            results: Counter[str] = Counter()
            for row in rows:
                result, stack = answer(matrix, soc, row, table)
                results[result] += 1
                if result != "right":
                    print(f"{result}: {soc}, {row}: {stack.values if stack else 'no stack'}")
            rival = sum(row["cann"] == newest["cann"] for row in rows)
            yield Figure(
                claim=f"rows of {table} for {soc} that advise answers right, of {len(rows)}",
                measured=results["right"],
                unit="rows",
                limit=len(rows),
                is_lower_limit=True,
                rival=rival,
                rival_name="the newest row for every host",
            )
            yield Figure(
                claim=f"rows of {table} for {soc} with a wrong answer", measured=results["wrong"], limit=0
            )
            yield Figure(
                claim=f"rows of {table} for {soc} without an answer", measured=results["none"], limit=0
            )
    without = [
        (soc, cann)
        for soc in SOCS
        for cann in HOSTS
        if not advise_stacks(matrix, AdviceRequest(soc=soc, cann=cann, needs=("gspo", "vllm"))).stacks
    ]
    yield Figure(
        claim=f"hosts with CANN 8.2 to 9.1 (of {len(SOCS) * len(HOSTS)}) for which there is no advice",
        measured=len(without),
        limit=0,
    )
