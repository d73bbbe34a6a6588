"""`gpushim node prepare`: this host's modules, device nodes and /dev/char links, as the driver wants them."""

import os
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from gpushim import node
from gpushim.node import Node
from gpushim.selection import Device


class Step(NamedTuple):
    """What was done, would be done, or was left, at one path."""

    what: str  # made, mended, linked, loaded, left
    path: str
    detail: str


def prepare(found: Node, *, dry_run: bool) -> list[Step]:
    """Make what is missing and mend what has stale numbers; what is right stays as it is.

    OSError where the kernel does not let us.
    """
    steps = _load_uvm(found, dry_run)
    modify = _modifies(found)
    devices = all_devices(found)
    node.look_up(found, devices)
    for device in devices:
        steps += _prepare(found.roots.dev, device, modify, dry_run)
    return steps


def all_devices(found: Node) -> list[Device]:
    """Every device that this node can have now: control, GPUs, capabilities."""
    major = found.gpu_major() or 0
    out = [Device("/dev/nvidiactl", found.majors.get("nvidiactl", major), 255, "", "")]
    if "nvidia-modeset" in found.majors:
        out.append(Device("/dev/nvidia-modeset", found.majors["nvidia-modeset"], 254, "", ""))
    if "nvidia-uvm" in found.majors:
        for minor, name in enumerate(("nvidia-uvm", "nvidia-uvm-tools")):
            out.append(Device(f"/dev/{name}", found.majors["nvidia-uvm"], minor, "", ""))
    out += [
        Device(f"/dev/nvidia{gpu.minor}", major, gpu.minor, "", "") for gpu in found.gpus if not gpu.fault
    ]
    caps = found.majors.get("nvidia-caps")
    if caps is None:
        return out
    capabilities = [found.config, found.monitor]
    for gpu in found.gpus:
        for _, instance in sorted(gpu.instances.items()):
            capabilities += [instance.access, *[one for _, one in sorted(instance.computes.items())]]
    for one in capabilities:
        if one is not None and not one.fault:
            path = f"/dev/nvidia-caps/nvidia-cap{one.minor}"
            out.append(Device(path, caps, one.minor, "", "", one.mode))
    return out


def _load_uvm(found: Node, dry_run: bool) -> list[Step]:
    if "nvidia-uvm" in found.majors:
        return []
    if found.roots.proc != "/proc":
        return [Step("left", "nvidia-uvm", "is not loaded, and this node is not the running kernel's")]
    if not dry_run:
        done = subprocess.run(["modprobe", "nvidia-uvm"], capture_output=True, text=True)
        if done.returncode:
            return [Step("left", "nvidia-uvm", f"modprobe: {done.stderr.strip()}")]
        found.majors |= node.read_majors(found.roots.proc)
    return [Step("loaded", "nvidia-uvm", "modprobe nvidia-uvm")]


def _modifies(found: Node) -> bool:
    """NVreg_ModifyDeviceFiles: 0 says that the administrator looks after the nodes."""
    try:
        text = Path(found.roots.proc, "driver/nvidia/params").read_text()
    except OSError:
        return True
    return "ModifyDeviceFiles: 0" not in text.splitlines()


def _prepare(dev: str, device: Device, modify: bool, dry_run: bool) -> list[Step]:
    path = Path(dev + device.path)
    numbers = f"{device.major}:{device.minor}"
    steps = []
    if device.host != (device.major, device.minor):
        if not modify and device.file_mode is None:
            return [Step("left", device.path, f"{numbers} is missing, and NVreg_ModifyDeviceFiles is 0")]
        word = "made" if device.host is None else "mended"
        if not dry_run:
            _make(path, device)
        steps.append(Step(word, device.path, f"{numbers} mode {device.mode:04o}"))
    link = Path(dev, "dev/char", numbers)
    if not (link.exists() or _leads(link, path)):
        if not dry_run:
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)  # a link that leads nowhere
            link.symlink_to(".." + device.path.removeprefix("/dev"))
        steps.append(Step("linked", f"/dev/char/{numbers}", device.path))
    return steps


def _leads(link: Path, path: Path) -> bool:
    """Whether *link* names *path*, be it there or not."""
    return link.is_symlink() and os.path.normpath(link.parent / os.readlink(link)) == str(path)


def _make(path: Path, device: Device) -> None:
    path.parent.mkdir(mode=0o755, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFCHR | device.mode, os.makedev(device.major, device.minor))
    path.chmod(device.mode)  # whatever the umask is
    os.chown(path, device.uid, device.gid)
