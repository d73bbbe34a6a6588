"""gpushim.request: what a container asks for."""

import pytest

from gpushim.errors import ShimError
from gpushim.request import CAPABILITIES, Request, environment, requested
from tests.defaults import settings


def asked(*env: str, **changes: object) -> Request | None:
    return requested({"process": {"env": list(env)}}, settings(**changes))


@pytest.mark.parametrize(
    "env",
    [
        pytest.param([], id="unset"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES="], id="empty"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES= , "], id="blank"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES"], id="without-equals"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=void"], id="void"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=0,void"], id="void-with-a-device"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=none,void,0"], id="void-with-anything"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"], id="last-wins"),
        pytest.param(["NVIDIA_MIG_MONITOR_DEVICES=all"], id="monitor-without-devices"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_MIG_MONITOR_DEVICES=nonsense"], id="void-ends-the-reading"),
        pytest.param(["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"], id="a-cuda-image-that-is-not-legacy"),
        pytest.param(["CUDA_VERSION="], id="cuda-version-empty"),
        pytest.param(["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES="], id="legacy-image-with-the-variable-empty"),
    ],
)  # fmt: skip
def test_nothing_is_asked(env: list[str]) -> None:
    assert asked(*env) is None


@pytest.mark.parametrize("config", [{}, {"process": None}, {"process": {}}, {"process": {"env": None}}])
def test_a_config_without_an_environment_asks_for_nothing(config: dict[str, object]) -> None:
    assert requested(config, settings()) is None


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        pytest.param("none", (), id="none"),
        pytest.param("none,none", (), id="none-twice"),
        pytest.param("all", ("all",), id="all"),
        pytest.param("0,all,GPU-x", ("all",), id="all-wins"),
        pytest.param("0", ("0",), id="index"),
        pytest.param("1,0", ("1", "0"), id="list"),
        pytest.param(" 1 , 0 ,", ("1", "0"), id="spaces"),
        pytest.param("0,0", ("0",), id="duplicate"),
        pytest.param("GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b", ("GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b",), id="uuid"),
    ],
)  # fmt: skip
def test_visible_devices(value: str, devices: tuple[str, ...]) -> None:
    request = asked(f"NVIDIA_VISIBLE_DEVICES={value}")

    assert request is not None
    assert (request.devices, request.source) == (devices, "NVIDIA_VISIBLE_DEVICES")


def test_a_legacy_cuda_image_asks_for_everything() -> None:
    request = asked("CUDA_VERSION=9.0.176")

    assert request is not None
    assert (request.devices, request.source, request.capabilities) == (("all",), "CUDA_VERSION", CAPABILITIES)


def test_swarm_variables_win_and_add_up() -> None:
    request = asked(
        "NVIDIA_VISIBLE_DEVICES=all",
        "DOCKER_RESOURCE_GPU=1",
        "DOCKER_RESOURCE_TPU=0,1",
        swarm_resource="DOCKER_RESOURCE_GPU,DOCKER_RESOURCE_TPU",
    )

    assert request is not None
    assert (request.devices, request.source) == (("1", "0"), "DOCKER_RESOURCE_GPU and DOCKER_RESOURCE_TPU")


def test_a_swarm_variable_that_is_empty_asks_for_nothing() -> None:
    assert asked("NVIDIA_VISIBLE_DEVICES=all", "GPU=", swarm_resource="GPU") is None


@pytest.mark.parametrize("value", ["all", "ALL", "All", " all "])
def test_mig_variables_know_all_in_any_case(value: str) -> None:
    request = asked(
        "NVIDIA_VISIBLE_DEVICES=none",
        f"NVIDIA_MIG_MONITOR_DEVICES={value}",
        f"NVIDIA_MIG_CONFIG_DEVICES={value}",
    )

    assert request is not None
    assert request.extras == {
        name: f"NVIDIA_{name.upper().replace('-', '_')}_DEVICES" for name in ("mig-monitor", "mig-config")
    }


@pytest.mark.parametrize(
    ("value", "capabilities"),
    [
        pytest.param(None, ("compute", "utility"), id="unset"),
        pytest.param("", ("compute", "utility"), id="empty"),
        pytest.param("utility", ("utility",), id="one"),
        pytest.param("video, graphics ,video", ("graphics", "video"), id="several"),
        pytest.param("all", CAPABILITIES, id="all"),
        pytest.param("utility,all", CAPABILITIES, id="all-and-one"),
    ],
)
def test_driver_capabilities(value: str | None, capabilities: tuple[str, ...]) -> None:
    env = [] if value is None else [f"NVIDIA_DRIVER_CAPABILITIES={value}"]

    request = asked("NVIDIA_VISIBLE_DEVICES=all", *env)

    assert request is not None
    assert request.capabilities == capabilities


def test_all_capabilities_are_those_the_node_supports() -> None:
    request = asked(
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=all",
        supported_driver_capabilities="compute,utility",
    )

    assert request is not None
    assert request.capabilities == ("compute", "utility")


def test_a_node_may_give_every_container_everything() -> None:
    request = asked(
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=utility",
        gpushim__driver_capabilities="all",
    )

    assert request is not None
    assert request.capabilities == CAPABILITIES


@pytest.mark.parametrize(
    ("env", "message"),
    [
        pytest.param(
            ["NVIDIA_VISIBLE_DEVICES=none,0"],
            "GS0201: NVIDIA_VISIBLE_DEVICES: 'none' stands with other devices in 'none,0'\n"
            "hint: name the devices, or 'none' alone for the driver without a GPU",
            id="none-with-a-device",
        ),
        pytest.param(
            ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=0:0"],
            "GS0202: NVIDIA_MIG_MONITOR_DEVICES: unknown value '0:0'\nhint: the one value it can have is 'all'",
            id="monitor-of-one-device",
        ),
        pytest.param(
            ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=yes"],
            "GS0202: NVIDIA_MIG_CONFIG_DEVICES: unknown value 'yes'\nhint: the one value it can have is 'all'",
            id="config-yes",
        ),
        pytest.param(
            ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,cuda"],
            "GS0203: NVIDIA_DRIVER_CAPABILITIES: unknown capability 'cuda'\n"
            "hint: the capabilities are compat32, compute, display, graphics, ngx, utility, video and all",
            id="unknown-capability",
        ),
    ],
)
def test_what_has_no_meaning_is_named(env: list[str], message: str) -> None:
    with pytest.raises(ShimError) as raised:
        asked(*env)

    assert str(raised.value) == message


def test_a_capability_the_node_does_not_support_is_named() -> None:
    with pytest.raises(ShimError) as raised:
        asked(
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DRIVER_CAPABILITIES=graphics",
            supported_driver_capabilities="compute,utility",
        )

    assert str(raised.value) == (
        "GS0204: NVIDIA_DRIVER_CAPABILITIES: 'graphics' is not allowed on this node\n"
        "hint: supported-driver-capabilities in config.toml is 'compute,utility'"
    )


def test_of_a_variable_set_twice_the_last_counts() -> None:
    config = {"process": {"env": ["A=1", "B", "A=2", "=x", "C=a=b"]}}

    assert environment(config) == {"A": "2", "": "x", "C": "a=b"}
