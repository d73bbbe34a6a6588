"""NVIDIA_REQUIRE_*: what holds, what does not, and when NVML is asked for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpushim.errors import InvalidRequest, Refused
from gpushim.requirements import check, required
from gpushim.resolution import resolve
from tests import fakenode
from tests.conftest import Shim
from tests.fakenode import driver

FACTS = {"cuda": "13.0", "driver": "580.126.09"}
H100 = {"arch": "9.0", "brand": "nvidia"}


def holds(expression: str, *gpus: dict[str, str]) -> bool:
    def asked() -> list[dict[str, str]]:
        assert gpus, "NVML was asked"
        return list(gpus)

    try:
        check({"NVIDIA_REQUIRE_X": expression}, FACTS, asked)
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("cuda>=12.6", True),
        ("cuda>=13.0", True),
        ("cuda>=13", True),
        ("cuda>13", False),
        ("cuda>=13.1", False),
        ("cuda<12.10", False),
        ("cuda=13.0", True),
        ("cuda!=13.0", False),
        ("driver>=580", True),
        ("driver<581", True),
        ("driver>=580.126.10", False),
        ("cuda>=99 driver>=450", True),
        ("cuda>=99,driver>=450", False),
        ("cuda>=12,driver>=450", True),
        ("  cuda>=12   ", True),
        ("", True),
        ("unheard=of", True),
        ("unheard=of,cuda>=99", False),
        ("cuda>=13.0 brand=tesla", True),
        ("cuda>=99,brand=tesla", False),
    ],
)
def test_what_needs_no_nvml(expression: str, expected: bool) -> None:
    assert holds(expression) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("arch>=7.0", True),
        ("arch<9", False),
        ("brand=nvidia", True),
        ("brand!=tesla", True),
        ("brand=tesla", False),
        ("cuda>=99 brand=nvidia,driver>=450", True),
        ("cuda>=99 brand=tesla,driver>=450", False),
    ],
)
def test_what_hangs_on_the_gpus(expression: str, expected: bool) -> None:
    assert holds(expression, H100) is expected


def test_every_gpu_must_do() -> None:
    old = {"arch": "6.1", "brand": "tesla"}

    assert not holds("arch>=7.0", H100, old)
    assert holds("arch>=7.0 brand=tesla", H100, old)


@pytest.mark.parametrize(
    "expression", ["cuda", "cuda>=", "cuda>=new", "driver>>5", "brand>tesla", "cuda>=12,,x", "=", "arch=1.x"]
)
def test_what_has_no_meaning_is_told(expression: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^GS0221: NVIDIA_REQUIRE_X: '[^']*' is no requirement"):
        holds(expression, H100)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.6", "NVIDIA_REQUIRE_MORE": "driver>=1"}, {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6", "NVIDIA_REQUIRE_MORE": "driver>=1"}),
        ({"CUDA_VERSION": "8.0.61"}, {"CUDA_VERSION": "cuda>=8.0"}),
        ({"CUDA_VERSION": "12.6.1", "NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}, {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}),
        ({"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}, {}),
        ({"NVIDIA_REQUIRE_CUDA": ""}, {}),
        *[({"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": word}, {}) for word in ("1", "t", "true", "TRUE")],
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": "no"}, {"NVIDIA_REQUIRE_CUDA": "cuda>=99"}),
    ],
)  # fmt: skip
def test_which_variables_require(env: dict[str, str], expected: dict[str, str]) -> None:
    assert required(env) == expected


@pytest.fixture
def node(shim: Shim) -> Shim:
    """The simulated node with the files of a driver, whose libcuda is of CUDA 13.0."""
    driver.install(shim.root / "driver")
    return shim


def resolved(node: Shim, *env: str, **settings: Any) -> list[str]:
    config = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", *env]}}
    return resolve(config, node.settings | settings, "runc", str(node.state)).warnings


def test_a_node_that_will_not_do_is_named_with_what_it_is(node: Shim) -> None:
    with pytest.raises(Refused) as caught:
        resolved(node, "NVIDIA_REQUIRE_CUDA=cuda>=13.1")

    assert str(caught.value) == (
        "GS0220: NVIDIA_REQUIRE_CUDA: 'cuda>=13.1' does not hold on this node: cuda is 13.0, driver is 580.126.09\n"
        "hint: use an image for this driver, update the driver, or set NVIDIA_DISABLE_REQUIRE=true"
    )


def test_a_refusal_leaves_the_config_as_it_was(node: Shim) -> None:
    node.config.write_text(
        json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99"]}})
    )
    before = node.config.read_bytes()

    assert node.create().returncode == 1
    assert node.config.read_bytes() == before


def test_nvml_is_asked_only_where_the_result_hangs_on_it(node: Shim) -> None:
    fakenode.sabotage(node.root, "init 999")

    assert resolved(node, "NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=tesla") == []
    with pytest.raises(Exception, match="GS0409: NVML"):
        resolved(node, "NVIDIA_REQUIRE_CUDA=cuda>=99 brand=tesla")


def test_arch_and_brand_are_nvmls(node: Shim) -> None:
    assert resolved(node, "NVIDIA_REQUIRE_ARCH=arch>=9.0", "NVIDIA_REQUIRE_B=brand=nvidia") == []
    with pytest.raises(Refused):
        resolved(node, "NVIDIA_REQUIRE_ARCH=arch>=10.0")


def test_the_administrator_may_switch_it_off(node: Shim) -> None:
    assert resolved(node, "NVIDIA_REQUIRE_CUDA=cuda>=99", **{"disable-require": True}) == []


def test_without_the_drivers_files_it_is_not_checked_and_said(shim: Shim) -> None:
    assert resolved(shim, "NVIDIA_REQUIRE_CUDA=cuda>=99") == [
        "NVIDIA_REQUIRE_CUDA: not checked: the driver's libcuda does not tell a version"
    ]


@pytest.mark.parametrize("source", ["for (;;);", "__builtin_trap();", "return 1;"])
def test_a_libcuda_that_does_not_tell_holds_nobody(
    node: Shim, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushim.driver_inventory._PATIENCE", 0.3)
    path: Path = node.root / f"driver/{driver.WHERE}/libcuda.so.{driver.VERSION}"
    path.write_bytes(
        driver.library("libcuda.so.1", f"int cuDriverGetVersion(int *v) {{ (void) v; {source} return 0; }}\n")
    )

    (warning,) = resolved(node, "NVIDIA_REQUIRE_CUDA=cuda>=99")

    assert warning.startswith("NVIDIA_REQUIRE_CUDA: not checked")
