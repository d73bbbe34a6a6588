"""NVML's view of the node beside the kernel's: names, memory, MIG devices; in a child with a deadline."""

import json
import os
import subprocess
import sys
from typing import Any

from gpushim.errors import InvalidNode
from gpushim.identity import find_library


def ask(settings: dict[str, Any]) -> dict[str, Any]:
    """What NVML says; InvalidNode when it says nothing within `gpushim.driver-timeout`."""
    library = find_library(settings["gpushim.roots.driver"])
    env = dict(os.environ)
    if "/" in library:
        env["LD_LIBRARY_PATH"] = os.path.dirname(library)
    timeout = settings["gpushim.driver-timeout"]
    argv = [sys.executable, "-m", "gpushim.ctl.nvml_view"]
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as problem:
        raise InvalidNode("GS0802", f"NVML: no answer in {timeout:g} s", hint="see dmesg") from problem
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise InvalidNode("GS0803", f"NVML: {said[-1]}")
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def differences(report: dict[str, Any]) -> list[str]:
    """Where the kernel and NVML do not agree on index, minor or UUID."""
    kernel = {gpu["index"]: gpu for gpu in report["gpus"] if not gpu["fault"]}
    nvml = {gpu["index"]: gpu for gpu in report["nvml"]["gpus"] if not gpu["fault"]}
    out = [f"GPU {n}: NVML: {gpu['fault']}" for n, gpu in enumerate(report["nvml"]["gpus"]) if gpu["fault"]]
    for index in sorted(kernel | nvml):
        one, other = kernel.get(index), nvml.get(index)
        if one is None or other is None:
            where = "NVML" if one is None else "the kernel"
            out.append(f"GPU {index}: only {where} knows it")
            continue
        if one["node"]["minor"] != other["minor"]:
            out.append(f"GPU {index}: minor {one['node']['minor']} to the kernel, {other['minor']} to NVML")
        if one["uuid"] and one["uuid"] != other["uuid"]:
            out.append(f"GPU {index}: UUID {one['uuid']} to the kernel, {other['uuid']} to NVML")
    return out


def _view() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    out: dict[str, Any] = {"driver": pynvml.nvmlSystemGetDriverVersion(), "gpus": []}
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu: dict[str, Any] = {
            "index": index,
            "fault": None,
            "name": "",
            "uuid": "",
            "memory": None,
            "migs": [],
        }
        out["gpus"].append(gpu)
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu |= _device(pynvml, handle)
            gpu["minor"] = pynvml.nvmlDeviceGetMinorNumber(handle)
        except pynvml.NVMLError as problem:
            gpu["fault"] = str(problem)
            continue
        out["gpus"][-1] = gpu | {"migs": _migs(pynvml, handle)}
    return out


def _migs(pynvml: Any, handle: Any) -> list[dict[str, Any]]:
    try:
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
    except pynvml.NVMLError:
        return []  # a GPU that cannot do MIG
    out = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError:
            continue  # an empty slot
        ids = {"gi": pynvml.nvmlDeviceGetGpuInstanceId(mig), "ci": pynvml.nvmlDeviceGetComputeInstanceId(mig)}
        out.append({"index": index, **ids, **_device(pynvml, mig)})
    return out


def _device(pynvml: Any, handle: Any) -> dict[str, Any]:
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError:
        memory = None  # of a GPU with MIG, for whoever may monitor
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "memory": memory,
    }


if __name__ == "__main__":
    json.dump(_view(), sys.stdout)
