"""What devices.list of cgroup v1 says, and what it cannot say."""

import pytest

from gpushim_hooks import device_lists
from gpushim_hooks.rule import LAST_MINOR, Rule

LIST = "c 195:* rw\nc 237:1 r\nc 1:3 rwm\nb 8:0 rwm\nc *:* m\n"


@pytest.mark.parametrize(
    ("entries", "major", "minor", "access", "answer"),
    [
        pytest.param(LIST, 195, 0, "rw", True, id="any-minor"),
        pytest.param(LIST, 195, None, "r", True, id="every-minor"),
        pytest.param(LIST, 195, 0, "rwm", False, id="no-one-entry-has-all"),
        pytest.param(LIST, 237, 1, "r", True, id="one-minor"),
        pytest.param(LIST, 237, 1, "w", False, id="not-to-write"),
        pytest.param(LIST, 237, 2, "r", False, id="another-minor"),
        pytest.param(LIST, 237, None, "r", False, id="not-every-minor"),
        pytest.param(LIST, 8, 0, "r", False, id="a-block-device-is-another"),
        pytest.param(LIST, 99, 9, "m", True, id="any-device"),
        pytest.param("", 195, 0, "r", False, id="nothing-is-allowed"),
        pytest.param("a *:* rwm\n", 195, 0, "r", None, id="allowed-by-default-hides-what-is-denied"),
    ],
)
def test_an_answer(entries: str, major: int, minor: int | None, access: str, answer: bool | None) -> None:
    assert device_lists.answer(entries, major, minor, access) is answer


def test_a_rule_of_a_range_asks_for_each_minor() -> None:
    assert device_lists.allows(LIST, Rule(195, 0, 7, "rw"))
    assert not device_lists.allows(LIST, Rule(237, 1, 2, "r"))
    assert not device_lists.allows(LIST, Rule(237, 0, LAST_MINOR, "r"))
    assert device_lists.allows("a *:* rwm\n", Rule(237, 1, 2, "r"))
