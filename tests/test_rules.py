"""gpushim.rules: what a list of device-cgroup rules lets through."""

import pytest

from gpushim.rules import Rules

DENY_ALL = {"allow": False, "access": "rwm"}


def rule(allow: bool, type: str = "c", major: int | None = None, minor: int | None = None, access: str = "rwm") -> dict[str, object]:  # fmt: skip
    return {"allow": allow, "type": type, "major": major, "minor": minor, "access": access}


@pytest.mark.parametrize(
    ("rules", "minor", "access", "expected"),
    [
        pytest.param([], 2, "r", False, id="nothing-said"),
        pytest.param([DENY_ALL], 2, "r", False, id="deny-all"),
        pytest.param([{"allow": True, "access": "rwm"}], 2, "rw", True, id="allow-all-without-type"),
        pytest.param([rule(True, "a")], 2, "rw", True, id="allow-all"),
        pytest.param([DENY_ALL, rule(True, major=237, minor=2, access="r")], 2, "r", True, id="exact"),
        pytest.param([DENY_ALL, rule(True, major=237, minor=2, access="r")], 2, "rw", False, id="part-of-the-access"),
        pytest.param([DENY_ALL, rule(True, major=237, minor=3)], 2, "r", False, id="another-minor"),
        pytest.param([DENY_ALL, rule(True, "b", 237, 2)], 2, "r", False, id="a-block-device"),
        pytest.param([DENY_ALL, rule(True, major=237)], 2, "r", True, id="any-minor"),
        pytest.param([DENY_ALL, rule(True, major=237, minor=-1)], 2, "r", True, id="any-minor-as-runc-writes-it"),
        pytest.param([rule(True, "a"), rule(False, major=237, minor=2)], 2, "r", False, id="denied-afterwards"),
        pytest.param([rule(False, major=237, minor=2), rule(True, "a")], 2, "r", True, id="allowed-afterwards"),
        pytest.param([DENY_ALL, rule(True, access="m")], 2, "r", False, id="mknod-only"),
        pytest.param([DENY_ALL, rule(True, major=237, minor=2, access="r"), rule(True, major=237, minor=2, access="w")], 2, "rw", True, id="in-two-rules"),
        pytest.param([DENY_ALL, rule(True, major=237, minor=2)], None, "r", False, id="one-minor-is-not-all"),
        pytest.param([DENY_ALL, rule(True, major=237)], None, "r", True, id="all-minors"),
        pytest.param([rule(True, "a"), rule(False, major=237, minor=2)], None, "r", False, id="all-but-one"),
    ],
)  # fmt: skip
def test_what_rules_allow(
    rules: list[dict[str, object]], minor: int | None, access: str, expected: bool
) -> None:
    assert Rules(rules, default=False).allow(237, minor, access) is expected


def test_the_default_is_what_holds_where_no_rule_speaks() -> None:
    assert Rules([], default=True).allow(237, 2, "rw")


def test_a_rule_that_is_added_counts() -> None:
    rules = Rules([DENY_ALL], default=False)
    assert not rules.allow(237, 2, "r")

    rules.add(rule(True, major=237, minor=2, access="r"))

    assert rules.allow(237, 2, "r")
    assert not rules.allow(237, 3, "r")
