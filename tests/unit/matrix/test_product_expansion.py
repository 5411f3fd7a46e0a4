from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import Location
from harness.matrix.cells.product_expansion import expand_product
from harness.matrix.model.constraints import AxisAgreement, Condition, Constraint, ExcludedCombinations
from harness.matrix.model.versions import Scheme, Version, parse_specifier, parse_version

AXES = ("a", "b", "c", "d")
NUMBERS = st.integers(0, 4)


def version(number: int) -> Version:
    return parse_version(Scheme.PEP440, str(number))


def condition(axis: str, operator: str, number: int) -> Condition:
    return Condition(axis=axis, specifiers=(parse_specifier(Scheme.PEP440, f"{operator}{number}"),))


CONDITIONS = st.builds(
    condition, st.sampled_from([*AXES, "absent"]), st.sampled_from(["<=", ">=", "==", "!="]), NUMBERS
)
AGREEMENTS = st.builds(
    lambda pair: AxisAgreement(axis=pair[0], other=pair[1], part="release"),
    st.permutations(AXES).map(lambda p: p[:2]),
)


@st.composite
def constraints(draw: st.DrawFn) -> tuple[Constraint, ...]:
    built = []
    for number in range(draw(st.integers(0, 4))):
        forbid = draw(st.booleans())
        conditions = tuple(draw(st.lists(CONDITIONS, min_size=1, max_size=2)))
        requirements = (draw(CONDITIONS | AGREEMENTS),)
        built.append(
            Constraint(
                id=f"c{number}",
                when=tuple(draw(st.lists(CONDITIONS, max_size=2))),
                require=() if forbid else requirements,
                forbid=conditions if forbid else (),
                reason="r",
                source="s",
                where=Location("m.yaml", number + 1),
            )
        )
    return tuple(built)


PRODUCTS = st.dictionaries(
    st.sampled_from(AXES), st.lists(NUMBERS, min_size=1, max_size=4, unique=True), min_size=1, max_size=4
)


@settings(deadline=None)
@given(PRODUCTS, constraints())
def test_pruning_finds_what_trying_every_combination_finds(
    product: dict[str, list[int]], rules: tuple[Constraint, ...]
) -> None:
    values = {axis: [version(number) for number in numbers] for axis, numbers in product.items()}
    found = list(expand_product(values, {}, rules))
    every = [
        dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())
    ]
    feasible = [one for one in every if not any(rule.violation(one) for rule in rules)]
    assert [part for part in found if not isinstance(part, ExcludedCombinations)] == feasible
    excluded = [part for part in found if isinstance(part, ExcludedCombinations)]
    assert sum(part.combinations for part in excluded) == len(every) - len(feasible)
    for part in excluded:
        assert part.what == part.constraint.violation(part.versions)
        covered = [one for one in every if part.versions.items() <= one.items()]
        assert len(covered) == part.combinations


def test_a_constraint_is_decided_before_the_axes_it_does_not_read() -> None:
    looked = []

    class Counting(Condition):
        def holds(self, versions: object) -> bool | None:
            looked.append(versions)
            return super().holds(versions)  # type: ignore[arg-type]

    rule = Constraint(
        id="c",
        when=(),
        require=(Counting(axis="a", specifiers=(parse_specifier(Scheme.PEP440, "1"),)),),
        forbid=(),
        reason="r",
        source="s",
        where=Location("m.yaml"),
    )
    product = {
        "a": [version(n) for n in range(3)],
        "b": [version(n) for n in range(100)],
        "c": [version(0)] * 1,
    }
    found = list(expand_product(product, {}, [rule]))
    assert len(looked) == 3
    assert len(found) == 100 + 2
    excluded = sum(part.combinations for part in found if isinstance(part, ExcludedCombinations))
    assert math.prod(map(len, product.values())) == excluded + 100


def test_fixed_values_are_judged_first() -> None:
    rule = Constraint(
        id="c",
        when=(),
        require=(),
        forbid=(condition("z", "==", 1),),
        reason="r",
        source="s",
        where=Location("m.yaml"),
    )
    [part] = expand_product({"a": [version(1), version(2)]}, {"z": version(1)}, [rule])
    assert isinstance(part, ExcludedCombinations)
    assert (part.combinations, part.what) == (2, "z 1")
