"""gpushim.plan and gpushim.present: what a config lacks of a selection."""

import copy
from typing import Any

import pytest

from gpushim import __version__, edits
from gpushim.errors import ShimError
from gpushim.node import Node, Roots
from gpushim.plan import Plan, plan, without_hooks, without_record
from gpushim.policy import Subject
from gpushim.request import Request
from gpushim.selection import Device, Selection
from tests.defaults import settings

DENY_ALL = {"allow": False, "access": "rwm"}
RECORD = f"annotation dev.gpushim/injected '{__version__}'"


def config(**more: Any) -> dict[str, Any]:
    return {"linux": {"resources": {"devices": [DENY_ALL]}}, **more}


def device(path: str = "/dev/nvidia0", minor: int = 0, access: str = "rw", *, mode: int = 0o666, gid: int = 0, host: tuple[int, int] | None = (195, 0)) -> Device:  # fmt: skip
    out = Device(path, 195, minor, access, "a test")
    out.mode, out.gid, out.host = mode, gid, host
    return out


def planned(tree: dict[str, Any], *devices: Device, later: bool = False, crun: bool = False, groups: bool = True) -> Plan:  # fmt: skip
    selection = Selection()
    selection.devices = list(devices) or [device()]
    selection.later_instances = later
    node = Node(Roots(settings()), {"nvidia": 195, "nvidia-caps": 237})
    extras = {"mig-config": "NVIDIA_MIG_CONFIG_DEVICES"} if later else {}
    request = Request(("all",), "NVIDIA_VISIBLE_DEVICES", extras=extras)
    return plan(tree, request, selection, Subject(tree), node, crun=crun, groups=groups)


def described(out: Plan) -> list[str]:
    return [edit.describe() for edit in out.edits]


NODE = "node /dev/nvidia0 195:0 mode 0666"
RULE = "rule allow c 195:0 rw"


def test_a_device_is_a_node_and_a_rule() -> None:
    assert described(planned(config())) == [NODE, RULE, RECORD]


def test_applying_gives_what_the_runtime_spec_says() -> None:
    tree = config()

    edits.apply(tree, planned(tree).edits)

    assert tree == {
        "linux": {
            "resources": {
                "devices": [
                    DENY_ALL,
                    {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"},
                ]
            },
            "devices": [
                {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "uid": 0, "gid": 0}
            ],
        },
        "annotations": {"dev.gpushim/injected": __version__},
    }  # fmt: skip


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param({}, id="empty"),
        pytest.param({"linux": None, "annotations": None}, id="null"),
        pytest.param({"linux": {"devices": None, "resources": None}}, id="null-below"),
        pytest.param({"linux": {"resources": {"devices": None}}}, id="rules-null"),
    ],
)
def test_missing_objects_are_made(tree: dict[str, Any]) -> None:
    edits.apply(tree, planned(tree).edits)

    assert len(tree["linux"]["devices"]) == len(tree["linux"]["resources"]["devices"]) == 1
    assert planned(tree).edits == []


def test_a_second_run_changes_nothing() -> None:
    tree = config()
    edits.apply(tree, planned(tree, later=True).edits)
    before = copy.deepcopy(tree)

    assert planned(tree, later=True).edits == []
    assert tree == before


def test_a_privileged_container_gets_nothing_twice() -> None:
    tree = config()
    tree["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    tree["linux"]["devices"] = [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]

    assert described(planned(tree)) == [RECORD]


def test_a_path_is_the_same_in_another_spelling() -> None:
    tree = config()
    tree["linux"]["devices"] = [{"path": "//dev/./nvidia0", "type": "c", "major": 195, "minor": 0}]

    assert described(planned(tree)) == [RULE, RECORD]


@pytest.mark.parametrize(
    ("there", "message"),
    [
        pytest.param({"type": "c", "major": 195, "minor": 1}, "c 195:1", id="another-minor"),
        pytest.param({"type": "b", "major": 195, "minor": 0}, "b 195:0", id="a-block-device"),
        pytest.param({"type": "c"}, "c None:None", id="without-numbers"),
    ],
)
def test_another_device_at_the_path_is_an_error(there: dict[str, Any], message: str) -> None:
    tree = config()
    tree["linux"]["devices"] = [{"path": "/dev/nvidia0", **there}]

    with pytest.raises(ShimError) as raised:
        planned(tree)

    assert str(raised.value) == (
        f"GS0601: linux.devices: /dev/nvidia0 is {message} already, and on this node it is c 195:0\n"
        "hint: take the entry out of what made this config: its numbers are stale"
    )


def test_crun_filters_nothing_while_there_is_no_rule() -> None:
    for rules in (list[Any](), None):
        tree: dict[str, Any] = {"linux": {"resources": {"devices": rules}}}
        assert described(planned(tree, crun=True)) == [NODE, RECORD]
        assert described(planned(tree)) == [NODE, RULE, RECORD]
    assert described(planned(config(), crun=True)) == [NODE, RULE, RECORD]


def test_later_instances_get_the_one_rule_for_every_minor() -> None:
    out = planned(config(), later=True)

    assert described(out)[:-1] == [NODE, RULE, "rule allow c 237:* r"]
    tree = config()
    edits.apply(tree, out.edits)
    assert tree["linux"]["resources"]["devices"][-1] == {
        "allow": True,
        "type": "c",
        "major": 237,
        "access": "r",
    }


def test_a_node_that_belongs_to_a_group_brings_the_group() -> None:
    private = device(mode=0o660, gid=44)

    assert "group 44" in described(planned(config(), private, device("/dev/nvidia1", 1, mode=0o660, gid=44)))
    assert "group 44" not in described(planned(config(), private, groups=False))
    assert "group 44" not in described(planned(config(), device(mode=0o666, gid=44)))
    for user in ({"additionalGids": [44]}, {"gid": 44}):
        assert "group 44" not in described(planned(config(process={"user": user}), private))


def test_the_host_node_of_other_numbers_is_a_warning() -> None:
    out = planned(config(), device(host=(511, 0)))

    assert NODE in described(out)
    assert out.warnings == [
        "/dev/nvidia0: the host's node is 511:0 and the kernel says 195:0: the kernel's numbers are given"
    ]


def test_a_node_that_the_host_lacks_is_made_all_the_same() -> None:
    out = planned(config(), device(host=None))

    assert described(out) == [NODE, RULE, RECORD]
    assert out.warnings == []


# ---- user namespaces ----


def in_user_namespace(**more: Any) -> dict[str, Any]:
    tree = config(**more)
    tree["linux"]["namespaces"] = [{"type": "user"}]
    return tree


def test_in_a_user_namespace_the_hosts_node_is_bound() -> None:
    tree = in_user_namespace()

    edits.apply(tree, planned(tree).edits)

    assert "devices" not in tree["linux"]
    assert tree["mounts"] == [
        {
            "destination": "/dev/nvidia0",
            "type": "bind",
            "source": "/dev/nvidia0",
            "options": ["bind", "nosuid", "noexec", "rprivate"],
        }
    ]
    assert planned(tree).edits == []


@pytest.mark.parametrize(
    ("host", "state"),
    [(None, "is not on this host"), ((511, 0), "the host's node is 511:0 and the kernel says 195:0")],
)
def test_in_a_user_namespace_the_hosts_node_must_be_there(host: tuple[int, int] | None, state: str) -> None:
    with pytest.raises(ShimError) as raised:
        planned(in_user_namespace(), device(host=host))

    assert str(raised.value) == (
        f"GS0406: /dev/nvidia0: {state}, and a container in a user namespace is given the host's node\n"
        "hint: gpushim node prepare, as root, makes and mends the nodes of this host"
    )


# ---- bind mounts over /dev ----


def test_no_node_is_made_where_the_hosts_dev_is() -> None:
    tree = config(mounts=[{"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]}])

    out = planned(tree)

    assert described(out) == [RULE, RECORD]
    assert out.warnings == [
        "the container has a bind mount at /dev: /dev/nvidia0 would land in what is mounted there, "
        "so no node is made; the rules are"
    ]


def test_a_tmpfs_over_a_bind_mount_is_the_containers_own() -> None:
    mounts = [
        {"destination": "/dev", "source": "/dev", "options": ["bind"]},
        {"destination": "/dev/", "type": "tmpfs", "source": "tmpfs"},
    ]

    assert described(planned(config(mounts=mounts))) == [NODE, RULE, RECORD]


def test_a_bind_mount_over_a_directory_covers_what_is_below() -> None:
    mounts = [
        {"destination": "/dev", "type": "tmpfs"},
        {"destination": "/dev/nvidia-caps", "type": "bind", "source": "/dev/nvidia-caps"},
        {"destination": "/dev/nvidia", "type": "bind", "source": "/x"},
    ]
    monitor = device("/dev/nvidia-caps/nvidia-cap2", 2, "r", host=(195, 2))

    out = planned(config(mounts=mounts), device(), monitor)

    assert described(out) == [NODE, RULE, "rule allow c 195:2 r", RECORD]
    assert len(out.warnings) == 1


def test_a_node_that_the_engine_mounted_is_not_made_again() -> None:
    mounts = [{"destination": "/dev/nvidia0", "type": "bind", "source": "/dev/nvidia0"}]

    out = planned(config(mounts=mounts))

    assert described(out) == [RULE, RECORD]
    assert out.warnings == []


# ---- hooks and the record ----


def test_the_hooks_of_other_answers_are_taken_out() -> None:
    hooks = {
        "prestart": [
            {"path": "/usr/bin/nvidia-container-runtime-hook"},
            {"path": "/keep"},
            {"path": "/usr/bin/nvidia-container-toolkit", "args": ["x"]},
        ],
        "createRuntime": [{"path": "/usr/local/bin/gpushim-hook"}, {}],
        "createContainer": [{"path": "/usr/bin/nvidia-ctk"}],
    }
    tree = {"hooks": hooks}
    out = Plan()

    without_hooks(tree, out)
    edits.apply(tree, out.edits)

    assert tree["hooks"] == {
        "prestart": [{"path": "/keep"}],
        "createRuntime": [{}],
        "createContainer": [{"path": "/usr/bin/nvidia-ctk"}],
    }


def test_a_record_that_is_not_ours_goes() -> None:
    tree = {"annotations": {"dev.gpushim/injected": "forged", "other": "1"}}
    out = Plan()

    without_record(tree, out)
    edits.apply(tree, out.edits)

    assert tree == {"annotations": {"other": "1"}}
    assert described(out) == ["without dev.gpushim/injected"]


def test_every_edit_has_a_reason() -> None:
    tree = in_user_namespace(hooks={"prestart": [{"path": "/nvidia-container-toolkit"}]})
    out = planned(tree, device(mode=0o660, gid=44), later=True)
    without_hooks(tree, out)

    assert [edit.describe() for edit in out.edits if not edit.why] == []
