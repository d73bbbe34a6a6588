"""A simulated node: the proc, sys and dev trees of a machine with NVIDIA GPUs, built from a few words.

`build(directory, "seed")` makes `directory/{proc,sys,dev}` and `directory/config.toml` with the settings that point
gpushim at them. Formats: kernel-open/nvidia/{nv-caps,nv-procfs}.c. Device nodes are real ones, so they need root.
"""

import errno
import functools
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.fakenode.descriptions import NODES, Gpu, Node
from tests.fakenode.majors import around, moved, real_majors

__all__ = ["NODES", "Gpu", "Node", "build", "moved", "real_majors"]

# Says that a directory holds a simulated node, whose trees the next one may replace.
MARK = ".simulated-node"


def build(directory: Path, node: "str | Node", *, avoid: "set[int] | None" = None) -> Node:
    """Make *node*, or the one of that name, in *directory*; the description that was built.

    *avoid*: majors that a driver of the real machine uses, which the dynamic ones of the node then go around
    (`moved` says how). A node that is in *directory* already is replaced.
    """
    if isinstance(node, str):
        node = NODES[node]
    if avoid:
        node = around(node, avoid)
    _make_room(directory)
    for root in ("proc", "sys", "dev"):
        (directory / root).mkdir()
    _proc(directory / "proc", node)
    _sys(directory / "sys", node)
    if node.driver:
        _library(directory / "driver", node)
    if os.geteuid() == 0:
        _dev(directory / "dev", node)
    roots = {
        "driver": directory / "driver",
        "proc": directory / "proc",
        "sys": directory / "sys",
        "dev": directory,
    }
    lines = [f'{name} = "{path}"' for name, path in roots.items()]
    (directory / "config.toml").write_text("[gpushim.roots]\n" + "\n".join(lines) + "\n")
    return node


def _make_room(directory: Path) -> None:
    """Nothing of an earlier node stays: FileExistsError for trees that are not of one, such as those of `/`."""
    there = [
        path for name in ("proc", "sys", "dev", "driver", "state") if (path := directory / name).exists()
    ]
    if there and not (directory / MARK).exists():
        raise FileExistsError(errno.EEXIST, "is there and not of a simulated node", str(there[0]))
    for path in there:
        shutil.rmtree(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()


def capability_minor(gpu_minor: int, gi: int, ci: int | None = None) -> int:
    """The fixed arithmetic of nv-caps.c: 3 + 135 a GPU + 9 an instance, compute instances behind."""
    return 3 + 135 * gpu_minor + 9 * gi + (0 if ci is None else 1 + ci)


def gpu_uuid(gpu: Gpu) -> str:
    """A UUID that is the same in each build."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, gpu.bus)}"


def mig_uuid(gpu: Gpu, gi: int, ci: int) -> str:
    """As gpu_uuid, of one MIG device."""
    return f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu.bus}/{gi}/{ci}')}"


def sabotage(directory: Path, *lines: str) -> None:
    """Have NVML of the node in *directory* do what *lines* say (nvml.c): `hang`, `lost 1`, `init 9` …"""
    text = "".join(f"do {line}\n" for line in lines)
    path = next((directory / "driver").rglob("nvml.txt"))
    kept = [line for line in path.read_text().splitlines(True) if not line.startswith("do ")]
    path.write_text("".join(kept) + text)


@functools.cache
def _compiled() -> bytes:
    """NVML of every simulated node: what it says stands in a file beside it."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "libnvidia-ml.so.1"
        source = Path(__file__).parent / "nvml.c"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(out), str(source)], check=True)
        return out.read_bytes()


def _library(root: Path, node: Node) -> None:
    where = root / f"usr/lib/{platform.machine()}-linux-gnu"
    where.mkdir(parents=True, exist_ok=True)
    (where / "libnvidia-ml.so.1").write_bytes(_compiled())
    lines = []
    seen = [
        gpu
        for gpu in sorted(
            node.gpus, key=lambda gpu: int(gpu.bus.split(":")[0], 16) << 16 | int(gpu.bus.split(":")[1], 16)
        )
        if gpu.state != "excluded"
    ]
    for index, gpu in enumerate(seen):
        lines.append(f"gpu {index} {gpu.minor} {gpu_uuid(gpu)} 81559 {gpu.model}")
        pairs = [(gi, ci) for gi, computes in sorted(gpu.instances.items()) for ci in computes]
        lines += [
            f"mig {index} {slot} {gi} {ci} {mig_uuid(gpu, gi, ci)} 9856"
            for slot, (gi, ci) in enumerate(pairs)
        ]
    (where / "nvml.txt").write_text("".join(f"{line}\n" for line in lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _access(path: Path, minor: int, mode: int) -> None:
    _write(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")


def _proc(proc: Path, node: Node) -> None:
    _write(proc / "sys/kernel/random/boot_id", "6f1ed002-ab59-4a2e-8d54-0123456789ab\n")
    _write(proc / "devices", _devices(node))
    if not node.driver:
        return
    driver = proc / "driver/nvidia"
    _write(
        driver / "version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {node.driver}  Wed Jan 14 01:15:22 UTC 2026\n"
        "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2)\n",
    )
    _write(
        driver / "params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
    )
    (driver / "gpus").mkdir(parents=True, exist_ok=True)
    for gpu in node.gpus:
        _information(driver / "gpus" / gpu.bus / "information", gpu, node)
    if not node.capabilities:
        return
    _access(driver / "capabilities/mig/config", 1, 0o400)
    _access(driver / "capabilities/mig/monitor", 2, 0o444)
    for gpu in node.gpus:
        mig = driver / f"capabilities/gpu{gpu.minor}/mig"
        mig.mkdir(parents=True, exist_ok=True)
        for gi, computes in gpu.instances.items():
            _access(mig / f"gi{gi}/access", capability_minor(gpu.minor, gi), 0o444)
            for ci in computes:
                _access(mig / f"gi{gi}/ci{ci}/access", capability_minor(gpu.minor, gi, ci), 0o444)
    _write(proc / "driver/nvidia-caps/mig-minors", _mig_minors())
    _write(proc / "driver/nvidia-caps/sys-minors", "fabric-imex-mgmt 4323\n")
    _write(proc / "driver/nvidia-caps/nvlink-minors", "fabric-mgmt 0\n")


def _devices(node: Node) -> str:
    majors: list[tuple[int, str]] = [(1, "mem"), (5, "/dev/tty"), (10, "misc"), (136, "pts")]
    if node.driver:
        names = ["nvidia-frontend"] if node.frontend else ["nvidia", "nvidia-modeset", "nvidiactl"]
        majors += [(195, name) for name in names]
        majors.append((node.imex_major, "nvidia-caps-imex-channels"))
        if node.capabilities:
            majors.append((node.caps_major, "nvidia-caps"))
        if node.uvm_major:
            majors.append((node.uvm_major, "nvidia-uvm"))
    lines = [f"{major:3d} {name}" for major, name in sorted(majors, key=lambda one: one[0])]
    return "Character devices:\n" + "\n".join(lines) + "\n\nBlock devices:\n  7 loop\n259 blkext\n"


def _information(path: Path, gpu: Gpu, node: Node) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if gpu.state == "hangs":
        os.mkfifo(path)  # nobody writes to it: an open for reading never returns
        return
    if gpu.state == "off-the-bus":
        path.mkdir()  # reading it is an error, for root too
        return
    lines = [f"Model: \t\t {gpu.model}", "IRQ:   \t\t 10"]
    if gpu.state != "no-uuid":
        lines.append(f"GPU UUID: \t {gpu_uuid(gpu)}")
    lines += [
        "Video BIOS: \t ??.??.??.??.??" if gpu.state == "no-uuid" else "Video BIOS: \t 96.00.99.00.01",
        "Bus Type: \t PCIe",
        "DMA Size: \t 52 bits",
        "DMA Mask: \t 0xfffffffffffff",
        f"Bus Location: \t {gpu.bus}",
        f"Device Minor: \t {gpu.minor}",
        f"GPU Firmware: \t {node.driver}",
        f"GPU Excluded:\t {'Yes' if gpu.state == 'excluded' else 'No'}",
    ]
    path.write_text("\n".join(lines) + "\n")


def _mig_minors() -> str:
    """Every capability that can be, existing or not: 4,322 lines."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(32):
        for gi in range(15):
            lines.append(f"gpu{gpu}/gi{gi}/access {capability_minor(gpu, gi)}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {capability_minor(gpu, gi, ci)}" for ci in range(8)]
    return "\n".join(lines) + "\n"


def _sys(sys: Path, node: Node) -> None:
    if not node.driver:
        return
    (sys / "module/nvidia").mkdir(parents=True, exist_ok=True)
    for gpu in node.gpus:
        drm = sys / "bus/pci/devices" / gpu.bus / "drm"
        for name in (f"card{gpu.minor}", f"renderD{128 + gpu.minor}"):
            (drm / name).mkdir(parents=True, exist_ok=True)


def _dev(dev: Path, node: Node) -> None:
    if not node.driver:
        return
    nodes: list[tuple[str, int, int, int]] = [("nvidiactl", 195, 255, 0o666)]
    if not node.frontend:
        nodes.append(("nvidia-modeset", 195, 254, 0o666))
    if node.uvm_major:
        nodes += [("nvidia-uvm", node.uvm_major, 0, 0o666), ("nvidia-uvm-tools", node.uvm_major, 1, 0o666)]
    nodes += [(f"nvidia{gpu.minor}", 195, gpu.minor, 0o666) for gpu in node.gpus]
    if node.capabilities:
        caps = [(1, 0o400), (2, 0o444)]
        for gpu in node.gpus:
            for gi, computes in gpu.instances.items():
                minors = [capability_minor(gpu.minor, gi, ci) for ci in (None, *computes)]
                caps += [(minor, 0o444) for minor in minors]
        nodes += [(f"nvidia-caps/nvidia-cap{minor}", node.caps_major, minor, mode) for minor, mode in caps]
    for name, major, minor, mode in nodes:
        path = dev / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        path.chmod(mode)  # whatever the umask is
