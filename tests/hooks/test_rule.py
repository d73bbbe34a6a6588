"""gpushim_hooks.rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim_hooks.rule import LAST_MINOR, Rule, merged


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        pytest.param(Rule(195, 0, 0, "rw"), "c 195:0 rw", id="one"),
        pytest.param(Rule(511, 3, 137, "r"), "c 511:3-137 r", id="range"),
        pytest.param(Rule(511, 0, LAST_MINOR, "r"), "c 511:* r", id="all"),
        pytest.param(Rule(8, 1, 1, "mwr", "b"), "b 8:1 rwm", id="block"),
    ],
)
def test_a_rule_describes_itself(rule: Rule, words: str) -> None:
    assert rule.describe() == words


@pytest.mark.parametrize(
    ("access", "asked"),
    [("r", ["r"]), ("w", ["w"]), ("rw", ["r", "w", "rw"]), ("m", ["m"]), ("rwm", ["r", "w", "rw", "m"])],
)
def test_what_the_kernel_may_ask_under_a_rule(access: str, asked: list[str]) -> None:
    assert Rule(1, 3, 3, access).asked() == asked


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(511, 2, 2, "r"), (511, 1, 1, "r")], ["c 511:1-2 r"], id="neighbours"),
        pytest.param([(511, 1, 5, "r"), (511, 3, 9, "r")], ["c 511:1-9 r"], id="overlap"),
        pytest.param([(511, 1, 9, "r"), (511, 3, 4, "r")], ["c 511:1-9 r"], id="inside"),
        pytest.param([(511, 1, 1, "r"), (511, 3, 3, "r")], ["c 511:1 r", "c 511:3 r"], id="gap"),
        pytest.param([(511, 1, 1, "r"), (511, 2, 2, "rw")], ["c 511:1 r", "c 511:2 rw"], id="access"),
        pytest.param([(510, 1, 1, "r"), (511, 2, 2, "r")], ["c 510:1 r", "c 511:2 r"], id="major"),
        pytest.param([(8, 1, 1, "r", "b"), (8, 2, 2, "r")], ["b 8:1 r", "c 8:2 r"], id="type"),
    ],
)
def test_neighbours_become_one_range(rules: list[tuple[int, int, int, str]], words: list[str]) -> None:
    assert [rule.describe() for rule in merged([Rule(*rule) for rule in rules])] == words


def covered(rules: list[Rule]) -> set[tuple[int, str, int]]:
    return {(rule.major, rule.access, minor) for rule in rules for minor in range(rule.first, rule.last + 1)}


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 30), st.integers(0, 5), st.sampled_from(["r", "rw"]))
    )
)
def test_merged_rules_say_the_same(numbers: list[tuple[int, int, int, str]]) -> None:
    rules = [Rule(major, first, first + more, access) for major, first, more, access in numbers]

    fewer = merged(rules)

    assert covered(fewer) == covered(rules)
    assert len(covered(fewer)) == sum(rule.last - rule.first + 1 for rule in fewer)
    assert len(merged(fewer)) == len(fewer) <= len(rules)
