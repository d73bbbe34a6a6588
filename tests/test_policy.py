"""gpushim.policy: who may have what."""

from typing import Any

import pytest

from gpushim.errors import Refused
from gpushim.policy import Subject, judge
from gpushim.request import Request
from tests.defaults import settings

MONITOR = Request(("all",), "NVIDIA_VISIBLE_DEVICES", extras={"mig-monitor": "NVIDIA_MIG_MONITOR_DEVICES"})
CONFIG = Request(("all",), "NVIDIA_VISIBLE_DEVICES", extras={"mig-config": "NVIDIA_MIG_CONFIG_DEVICES"})


def container(capabilities: object = None, *, user_namespace: bool = False, uid: int = 0) -> dict[str, Any]:
    namespaces = [{"type": "user"}] if user_namespace else [{"type": "mount"}]
    process = {"capabilities": capabilities, "user": {"uid": uid}}
    return {"process": process, "linux": {"namespaces": namespaces}}


ADMIN = {"bounding": ["CAP_SYS_ADMIN"], "effective": []}


def granted(request: Request, config: dict[str, Any], **changes: Any) -> list[bool]:
    return [verdict.granted for verdict in judge(request, Subject(config), settings(**changes))]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        pytest.param(ADMIN, True, id="bounding"),
        pytest.param({"effective": ["CAP_SYS_ADMIN"]}, False, id="effective-alone"),
        pytest.param(["CAP_SYS_ADMIN"], True, id="old-array"),
        pytest.param(["CAP_MKNOD"], False, id="old-array-without"),
        pytest.param(None, False, id="null"),
        pytest.param({}, False, id="empty"),
        pytest.param({"bounding": None}, False, id="bounding-null"),
        pytest.param({"bounding": "CAP_SYS_ADMIN"}, False, id="bounding-is-a-string"),
        pytest.param("CAP_SYS_ADMIN", False, id="a-string"),
    ],
)
def test_monitoring_needs_sys_admin_in_the_bounding_set(capabilities: object, expected: bool) -> None:
    assert granted(MONITOR, container(capabilities)) == [True, expected]


def test_capabilities_may_be_absent() -> None:
    assert granted(MONITOR, {"process": {}}) == [True, False]
    assert granted(MONITOR, {}) == [True, False]


def test_sys_admin_of_a_user_namespace_does_not_count() -> None:
    assert granted(MONITOR, container(ADMIN, user_namespace=True)) == [True, False]


def test_sys_admin_does_not_count_where_this_program_itself_is_in_a_user_namespace() -> None:
    verdicts = judge(MONITOR, Subject(container(ADMIN), nested=True), settings())

    assert [verdict.granted for verdict in verdicts] == [True, False]


@pytest.mark.parametrize(
    ("answer", "capabilities", "expected"),
    [("allow", None, True), ("deny", ADMIN, False), ("sys-admin", ADMIN, True), ("sys-admin", None, False)],
)
def test_the_administrator_decides(answer: str, capabilities: object, expected: bool) -> None:
    verdicts = granted(CONFIG, container(capabilities), gpushim__policy__mig_config=answer)

    assert verdicts == [True, expected]


def test_a_refusal_names_variable_lack_and_setting() -> None:
    verdict = judge(MONITOR, Subject(container()), settings())[1]

    with pytest.raises(Refused) as raised:
        verdict.raise_refusal()

    assert str(raised.value) == (
        "GS0301: NVIDIA_MIG_MONITOR_DEVICES: refused: needs CAP_SYS_ADMIN in the container's bounding set\n"
        'hint: gpushim.policy.mig-monitor = "sys-admin" decides; '
        'gpushim.policy.mig-monitor = "allow" in config.toml allows it'
    )


def test_a_refusal_may_be_set_to_be_ignored() -> None:
    verdict = judge(
        MONITOR, Subject(container()), settings(gpushim__policy__on_refusal__mig_monitor="ignore")
    )[1]

    verdict.raise_refusal()

    assert verdict.describe() == (
        "NVIDIA_MIG_MONITOR_DEVICES: refused: needs CAP_SYS_ADMIN in the container's bounding set "
        '(gpushim.policy.mig-monitor = "sys-admin")'
    )


@pytest.mark.parametrize(
    ("rules", "uid", "expected"),
    [
        pytest.param([{"uid": 1000, "mig-monitor": "allow"}], 1000, True, id="uid"),
        pytest.param([{"uid": [1, 1000], "mig-monitor": "allow"}], 1000, True, id="one-of-uids"),
        pytest.param([{"uid": 1000, "mig-monitor": "allow"}], 0, False, id="another-uid"),
        pytest.param([{"mig-monitor": "allow"}], 0, True, id="everyone"),
        pytest.param([{"user-namespace": True, "mig-monitor": "allow"}], 0, False, id="not-in-a-user-namespace"),
        pytest.param([{"user-namespace": False, "mig-monitor": "allow"}], 0, True, id="outside-of-user-namespaces"),
        pytest.param([{"mig-config": "allow"}], 0, False, id="another-kind"),
        pytest.param([{"mig-monitor": "deny"}, {"mig-monitor": "allow"}], 0, False, id="first-match-decides"),
        pytest.param([{"uid": 5, "mig-monitor": "deny"}, {"mig-monitor": "allow"}], 0, True, id="second-matches"),
        pytest.param([{"annotation": {"a": "b"}, "mig-monitor": "allow"}], 0, False, id="annotations-of-no-engine"),
    ],
)  # fmt: skip
def test_rules(rules: list[dict[str, object]], uid: int, expected: bool) -> None:
    assert granted(MONITOR, container(uid=uid), gpushim__policy__rules=rules) == [True, expected]


def test_a_rule_is_named_where_it_decided() -> None:
    rules = [{"uid": 7, "mig-monitor": "allow"}, {"mig-monitor": "allow"}]

    verdict = judge(MONITOR, Subject(container()), settings(gpushim__policy__rules=rules))[1]

    assert verdict.describe() == (
        'NVIDIA_MIG_MONITOR_DEVICES: granted by gpushim.policy.rules[1].mig-monitor = "allow"'
    )


def test_a_rule_may_match_what_the_engine_itself_says() -> None:
    key = "io.kubernetes.cri.sandbox-namespace"
    rules = [{"annotation": {key: "monitoring"}, "mig-monitor": "allow"}]
    values = settings(gpushim__policy__rules=rules)

    def grants(engine: str, **annotations: str) -> bool:
        tree = container() | {"annotations": {key: "monitoring"} | annotations}
        return judge(MONITOR, Subject(tree, engine=engine), values)[1].granted

    assert grants("containerd")
    assert not grants("containerd", **{key: "default"})
    assert not grants("crio")
    assert not grants("")
