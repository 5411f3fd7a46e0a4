from harness.plan.keys.code_impact import code_impact
from harness.plan.tasks.check_registry import all_checks


def test_each_package_says_how_many_checks_a_change_in_it_renews():
    checks = all_checks()
    rows = {row.package: row for row in code_impact(checks)}
    assert rows["cli"].definition_most == 0
    assert rows["(top level)"].module_most == len(checks)
    assert rows["compat"].definition_most > 0
    # Different code for resolving makes another environment for all programs in cells.
    assert rows["numerics"].definition_most < len(checks)
    for row in rows.values():
        assert row.definition_median <= row.definition_most <= len(checks)
        assert row.in_no_key <= row.definitions
