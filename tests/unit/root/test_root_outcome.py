from harness.errors import InputError, Location, Problem
from harness.outcome import Evidence, Status, Tier


def test_evidence_is_ordered_from_static_to_hardware():
    ranks = [
        evidence.rank for evidence in (Evidence.STATIC, Evidence.CPU, Evidence.SIMULATED, Evidence.HARDWARE)
    ]
    assert ranks == sorted(ranks)


def test_tiers_are_ordered_from_cheap_to_dear():
    ranks = [tier.rank for tier in (Tier.STATIC, Tier.BUILD, Tier.NUMERICS, Tier.CONVERGENCE)]
    assert ranks == sorted(ranks)


def test_every_status_has_its_own_word():
    assert len({status.value for status in Status}) == len(Status) == 9


def test_an_error_says_what_where_why_and_what_to_do():
    error = InputError(
        "unknown axis 'vllm-ascend'",
        where=Location("matrix.yaml", 3, 5),
        why="no such axis",
        fix="write vllm_ascend",
    )
    assert str(error).splitlines() == [
        "matrix.yaml:3:5: unknown axis 'vllm-ascend'",
        "  why: no such axis",
        "  do:  write vllm_ascend",
    ]


def test_several_problems_are_one_error():
    error = InputError.of([Problem("one"), Problem("two", Location("f", 2))])
    assert str(error) == "one\nf:2: two"
    assert error.exit_code == 2
