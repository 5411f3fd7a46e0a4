from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.matrix.model.versions import Scheme, Version, parse_specifier, parse_version

NUMBER = st.integers(0, 40)
RELEASE = st.lists(NUMBER, min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
OPTIONAL = st.just("")
CANN = st.builds(
    "".join,
    st.tuples(
        RELEASE,
        OPTIONAL | NUMBER.map(lambda n: f".RC{n}") | NUMBER.map(lambda n: f".rc{n}"),
        OPTIONAL | NUMBER.map(lambda n: f".alpha{n:03}") | NUMBER.map(lambda n: f"-beta.{n}"),
    ),
)
PEP440 = st.builds(
    "".join,
    st.tuples(
        RELEASE,
        OPTIONAL | st.tuples(st.sampled_from(["a", "b", "rc"]), NUMBER).map(lambda p: f"{p[0]}{p[1]}"),
        OPTIONAL | NUMBER.map(lambda n: f".post{n}"),
        OPTIONAL | NUMBER.map(lambda n: f".dev{n}"),
        OPTIONAL | st.just("+git4c901a4") | st.just("+cpu"),
    ),
)
COMMIT = st.text("0123456789abcdef", min_size=7, max_size=40)
VERSIONS = st.one_of(
    st.lists(CANN.map(lambda text: parse_version(Scheme.CANN, text)), min_size=3, max_size=3),
    st.lists(
        st.tuples(PEP440, OPTIONAL | COMMIT.map(lambda ref: f"@{ref}")).map(
            lambda pair: parse_version(Scheme.PEP440, "".join(pair))
        ),
        min_size=3,
        max_size=3,
    ),
)


@given(VERSIONS)
def test_the_order_is_total(three: list[Version]) -> None:
    for left, right in itertools.product(three, repeat=2):
        assert (left < right) + (left > right) + (left.compare(right) == 0) == 1
        assert (left <= right) or (right <= left)
        assert left.compare(right) == -right.compare(left)
        assert (left <= right and right <= left) == (left.compare(right) == 0)
    for a, b, c in itertools.permutations(three):
        if a <= b and b <= c:
            assert a <= c


@given(VERSIONS)
def test_what_is_printed_parses_to_the_same(three: list[Version]) -> None:
    for version in three:
        again = parse_version(version.scheme, str(version))
        assert again == version
        assert hash(again) == hash(version)
        assert again.compare(version) == 0


@pytest.mark.parametrize(
    ("scheme", "ascending"),
    [
        (
            Scheme.CANN,
            (
                "7.0.RC1 8.0.RC3.beta1 8.0.RC3 8.0.0 8.1.RC1 8.2.RC1 8.2.RC2 8.3.RC1.alpha002 8.3.RC1 8.3.RC1.1 "
                "8.3.RC2 8.3 8.5.0.alpha001 8.5.0 8.5.1 8.9.9 8.10.0 9.0.0-alpha.9 9.0.0-beta.1 9.0.0-beta.2 "
                "9.0.0 9.1.0-beta.3 9.1.0 24.1.0.3 25.3.RC1 26.0.rc1"
            ),
        ),
        (
            Scheme.PEP440,
            (
                "0.6.1 0.7.0.dev0 0.7.0 0.7.1 0.8.0.dev0 0.8.0 0.11.0rc0 0.11.0rc1 0.11.0 2.5.1 "
                "2.5.1.post1.dev20250619 2.5.1.post1 2.7.1.dev20250724 2.7.1 2.7.1.post2 2.9.0 2.9.0.post1 "
                "2.9.0.post1+git4c901a4 2.9.0.post2 2.10.0"
            ),
        ),
        (Scheme.PYTHON, "3.9 3.10 3.10.12 3.11 3.13"),
    ],
)
def test_known_orders(scheme: Scheme, ascending: str) -> None:
    versions = [parse_version(scheme, text) for text in ascending.split()]
    assert all(left < right for left, right in itertools.pairwise(versions))


def test_the_case_of_rc_does_not_matter() -> None:
    assert parse_version(Scheme.CANN, "8.3.rc1") == parse_version(Scheme.CANN, "8.3.RC1")
    assert str(parse_version(Scheme.CANN, "8.3.rc1.Alpha002")) == "8.3.RC1.alpha002"


def test_a_commit_has_the_place_of_its_nominal_version() -> None:
    one, other = (parse_version(Scheme.PEP440, f"0.6.1@{ref}") for ref in ("d62da4950573", "796871d7d092"))
    assert one != other
    assert one.compare(other) == 0
    assert parse_version(Scheme.PEP440, "0.6.0") < one < parse_version(Scheme.PEP440, "0.7.0.dev0")
    assert (one.commit, one.nominal, str(one.released)) == ("d62da4950573", "0.6.1", "0.6.1")


def test_a_tag_is_a_ref_and_no_commit() -> None:
    version = parse_version(Scheme.PEP440, "2.6.0@v7.2.RC1.alpha002-pytorch2.6.0")
    assert (version.commit, version.ref) == ("", "v7.2.RC1.alpha002-pytorch2.6.0")
    assert parse_version(Scheme.PEP440, "1@" + "a" * 40).short == "1@" + "a" * 12


@pytest.mark.parametrize(
    ("scheme", "text", "reason"),
    [
        (Scheme.CANN, "8.3.RC", "is not a CANN version"),
        (Scheme.CANN, "8.3.RC1.gamma1", "is not a CANN version"),
        (Scheme.CANN, "8..3", "is not a CANN version"),
        (Scheme.CANN, "", "is not a CANN version"),
        (Scheme.PEP440, "core_v0.12.1", "is not a version"),
        (Scheme.PEP440, "0.6.1@main", "is a moving branch"),
        (Scheme.PEP440, "0.6.1@", "neither a commit nor a tag"),
        (Scheme.PEP440, "0.6.1@a..b", "neither a commit nor a tag"),
        (Scheme.PEP440, "0.6.1@-x", "neither a commit nor a tag"),
        (Scheme.PYTHON, "hosts", "is not a version"),
        (Scheme.NAME, "a b", "is not a name"),
        (Scheme.PEP440, "1" * 5000, "longer than"),
    ],
)
def test_a_malformed_version_says_why(scheme: Scheme, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_version(scheme, text)


@given(st.sampled_from(list(Scheme)), st.sampled_from([parse_version, parse_specifier]), st.text(max_size=30))
def test_any_text_is_a_version_or_a_value_error(
    scheme: Scheme, parse: Callable[..., object], text: str
) -> None:
    with contextlib.suppress(ValueError):
        assert parse(scheme, text)


def holds(scheme: Scheme, specifier: str, version: str) -> bool | None:
    return parse_specifier(scheme, specifier).contains(parse_version(scheme, version))


@pytest.mark.parametrize(
    ("specifier", "inside", "outside"),
    [
        (">=8.3.RC1,<9", "8.3.RC1 8.3.RC2 8.5.0 8.10.0 9.0.0-beta.2", "8.3.RC1.alpha002 8.2.RC2 9.0.0 9.1.0"),
        ("8.3.rc1", "8.3.RC1", "8.3.RC1.alpha002 8.3.RC2 8.3"),
        ("!=8.5.0", "8.5.1 8.3.RC1", "8.5.0 8.5"),
        ("==8.5.*", "8.5.0 8.5.1 8.5", "8.50.0 8.3.RC1 9.0.0"),
        ("8.3.*", "8.3.RC1 8.3.RC2 8.3.RC1.alpha002", "8.30.RC1"),
        ("*", "8.5.0 9.0.0", ""),
        (">8.5.0", "8.5.1", "8.5.0 8.5.0.alpha001"),
    ],
)
def test_specifiers_over_cann(specifier: str, inside: str, outside: str) -> None:
    assert all(holds(Scheme.CANN, specifier, text) for text in inside.split())
    assert not any(holds(Scheme.CANN, specifier, text) for text in outside.split())


@pytest.mark.parametrize(
    ("specifier", "inside", "outside"),
    [
        (">=0.9.0", "0.9.0 0.9.1 0.10.0.dev0@1dda039b", "0.9.0rc1 0.8.0"),
        ("<0.8", "0.7.1 0.8.0.dev0", "0.8.0 0.8.0.post1"),
        ("==2.13.0", "2.13.0 2.13.0+cpu 2.13", "2.13.0.post1 2.13.1"),
        ("2.13.0+cpu", "2.13.0+cpu", "2.13.0 2.13.0+cu12"),
        ("!=5.6.0,<5.11,>=5.5.3", "5.5.3 5.10.4", "5.6.0 5.11.0 5.5.2"),
        ("0.6.1@d62da4950573", "0.6.1@d62da4950573d7a4b7ef 0.6.1@d62da49", "0.6.1 0.6.1@796871d7"),
    ],
)
def test_specifiers_over_packages(specifier: str, inside: str, outside: str) -> None:
    assert all(holds(Scheme.PEP440, specifier, text) for text in inside.split())
    assert not any(holds(Scheme.PEP440, specifier, text) for text in outside.split())


def test_names_are_equal_or_not() -> None:
    assert holds(Scheme.NAME, "a2", "a2")
    assert holds(Scheme.NAME, "!=a2", "a3")
    with pytest.raises(ValueError, match="names have no order"):
        parse_specifier(Scheme.NAME, ">=a2")


def test_the_host_interpreter_is_not_known_here() -> None:
    assert holds(Scheme.PYTHON, ">=3.10", "host") is None
    assert holds(Scheme.PYTHON, "*", "host") is True
    with pytest.raises(ValueError, match="no order"):
        parse_version(Scheme.PYTHON, "host").compare(parse_version(Scheme.PYTHON, "3.11"))


@pytest.mark.parametrize(
    "text", ["", ">=", "=>1", "1 2", ">=1.*", ">=1,,<2", "1.*.*", "rc1.*", "1rc1.*", "~=1.0"]
)
def test_a_malformed_specifier_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_specifier(Scheme.PEP440, text)


@given(PEP440, st.sampled_from(["==", "!=", ">=", "<=", ">", "<"]), PEP440)
def test_a_clause_agrees_with_the_order(left: str, operator: str, right: str) -> None:
    version, bound = parse_version(Scheme.PEP440, left), parse_version(Scheme.PEP440, right)
    expected = {
        ">=": version >= bound,
        "<=": version <= bound,
        ">": version > bound,
        "<": version < bound,
    }.get(operator)
    if expected is not None:
        assert holds(Scheme.PEP440, operator + right, left) == expected
    else:
        equal = holds(Scheme.PEP440, f"=={right}", left)
        assert holds(Scheme.PEP440, f"!={right}", left) != equal
        assert equal or version.compare(bound) != 0


@given(CANN, CANN)
def test_specifiers_print_what_they_parse(lower: str, upper: str) -> None:
    text = f">={lower},<{upper}"
    specifier = parse_specifier(Scheme.CANN, text)
    assert parse_specifier(Scheme.CANN, str(specifier)) == specifier
