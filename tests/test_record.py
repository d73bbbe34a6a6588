"""What is kept of a container: by id and bundle, with UUIDs, until its bundle is gone."""

import json
import os
from pathlib import Path

import pytest

from gpushim import record, records
from gpushim.resolution import resolve
from tests import fakenode
from tests.conftest import Shim


def kept(shim: Shim) -> list[dict[str, object]]:
    return records.read_all(str(shim.state))


@pytest.mark.node("eight-by-seven")
def test_a_create_keeps_what_it_gave(shim: Shim) -> None:
    gpu = fakenode.NODES["eight-by-seven"].gpus[3]
    uuid = fakenode.mig_uuid(gpu, 9, 0)
    shim.config.write_text(json.dumps({"process": {"env": [f"NVIDIA_VISIBLE_DEVICES={uuid}"]}}))

    assert shim.create().returncode == 0

    (found,) = kept(shim)
    access, compute = (fakenode.capability_minor(gpu.minor, 9, ci) for ci in (None, 0))
    assert found["schema"] == 1
    assert (found["id"], found["bundle"]) == ("id", str(shim.bundle))
    assert found["gpus"] == [[3, gpu.minor, fakenode.gpu_uuid(gpu)]]
    assert found["migs"] == [[fakenode.gpu_uuid(gpu), 9, 0, uuid, [access, compute]]]
    caps = fakenode.NODES["eight-by-seven"].caps_major
    assert [f"/dev/nvidia-caps/nvidia-cap{access}", caps, access, "r"] in found["devices"]  # type: ignore[operator]
    assert found["later_instances"] is False
    (path,) = (shim.state / "containers").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_of_all_the_instances_the_uuid_is_not_asked_for(shim: Shim) -> None:
    shim.config.write_text(json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))

    shim.create()

    (found,) = kept(shim)
    assert {one[3] for one in found["migs"]} == {""}  # type: ignore[attr-defined]
    assert len(found["migs"]) == 7  # type: ignore[arg-type]


def test_a_second_create_of_the_same_container_takes_the_place_of_the_first(shim: Shim) -> None:
    shim.config.write_text(json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))
    shim.create()
    shim.create()

    assert len(kept(shim)) == 1


def test_a_container_that_gets_nothing_has_no_record(shim: Shim) -> None:
    for env in ("NVIDIA_VISIBLE_DEVICES=void", "A=b"):
        shim.config.write_text(json.dumps({"process": {"env": [env]}}))
        shim.create()

    assert kept(shim) == []


def test_records_of_containers_that_are_gone_are_swept(shim: Shim, tmp_path: Path) -> None:
    shim.config.write_text(json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))
    given = resolve(json.loads(shim.config.read_text()), shim.settings, "runc", str(shim.state))
    for n in range(40):
        bundle = tmp_path / f"bundle{n}"
        bundle.mkdir()
        assert record.keep(str(shim.state), f"c{n}", str(bundle), given)
        if n >= 5:
            bundle.rmdir()
    directory = shim.state / "containers"
    (directory / "half").write_text('{"schema": 1, "id"')

    for _ in range(100):
        records.sweep(str(directory))

    assert sorted(str(one["id"]) for one in kept(shim)) == [f"c{n}" for n in range(5)]
    assert len(list(directory.iterdir())) == 5


def test_what_others_could_have_written_is_no_record(shim: Shim) -> None:
    shim.config.write_text(json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))
    shim.create()
    (path,) = (shim.state / "containers").iterdir()
    os.chmod(path, 0o666)

    assert kept(shim) == []


def test_a_state_directory_that_cannot_be_written_costs_no_container(shim: Shim) -> None:
    shim.config.write_text(json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))
    shim.state.mkdir(mode=0o700)
    (shim.state / "containers").write_text("a file in its place")

    assert shim.create().returncode == 0
    assert "/dev/nvidia0" in shim.config.read_text()
