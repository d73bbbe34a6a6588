"""This host's GPUs, MIG instances, capabilities and device nodes, as the kernel tells them.

Sources: /proc/driver/nvidia/gpus/*/information, /proc/driver/nvidia/capabilities (kernel-open/nvidia/nv-
caps.c) and /proc/devices. NVML is not asked: it initialises the driver, which takes seconds on an idle node.
"""

import posix as os
import time

from gpushim import files, state
from gpushim.errors import InvalidNode
from gpushim.json_text import decode, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.features import Feature
    from gpushim.selection import Device

# Seconds that one reader of the GPUs' files has before each file that has not come gets a reader of its own,
# and seconds in all for a container that may not need the ones that do not come.
PATIENCE = 0.1
QUICK = 0.25
# A GPU that could not be read, or that has no UUID yet, is looked at again after so many seconds.
RETRY = 60.0
RETRY_UUID = 2.0

CACHE = "node.json"

_ID = 0xFFFFFFFF  # a uid or gid that came through a C int

_LATE = "no answer in "


class Gpu:
    """One GPU that the driver has not excluded.

    `index` is its place in PCI order (what NVML counts), `minor` the N of /dev/nvidiaN: two numbers. `fault`
    says why its information could not be read (minor is -1 and uuid empty then), `late` that it may still
    come. `drm` are the names of its nodes in /dev/dri, once they are read.
    """

    __slots__ = ("bus", "drm", "fault", "index", "instances", "late", "minor", "model", "uuid")

    def __init__(self, index: int, bus: str, minor: int, uuid: str, model: str, fault: str) -> None:
        self.index = index
        self.bus = bus
        self.minor = minor
        self.uuid = uuid
        self.model = model
        self.fault = fault
        self.late = fault.startswith(_LATE)
        self.instances: dict[int, Instance] = {}
        self.drm: list[str] = []


class Capability:
    """One access file of nvidia-caps: the minor and mode of its node, or why there is none."""

    __slots__ = ("fault", "minor", "mode")

    def __init__(self, minor: int, mode: int, fault: str) -> None:
        self.minor = minor
        self.mode = mode
        self.fault = fault


class Instance:
    """A GPU instance: its own capability and those of its compute instances, by id."""

    __slots__ = ("access", "computes")

    def __init__(self) -> None:
        self.access: Capability | None = None
        self.computes: dict[int, Capability] = {}


class Node:
    """What one look at the kernel's files gave."""

    __slots__ = ("config", "features", "gpus", "imex_channels", "majors", "monitor", "roots")

    def __init__(self, roots: "Roots", majors: dict[str, int]) -> None:
        self.roots = roots
        self.majors = majors
        self.gpus: list[Gpu] = []
        self.imex_channels: list[int] = []
        self.features: dict[str, Feature] = {}
        self.config: Capability | None = None
        self.monitor: Capability | None = None

    def gpu_major(self) -> "int | None":
        """Of /dev/nvidiaN, nvidiactl and nvidia-modeset: up to the 535 series it has another name."""
        return self.majors.get("nvidia", self.majors.get("nvidia-frontend"))


class Roots:
    """Where this node's /proc, /sys and /dev stand: elsewhere for a driver container or a simulated node."""

    __slots__ = ("dev", "proc", "sys")

    def __init__(self, settings: "dict[str, Any]") -> None:
        self.dev = settings["gpushim.roots.dev"].rstrip("/")
        self.proc = settings["gpushim.roots.proc"]
        self.sys = settings["gpushim.roots.sys"]


def read_node(
    settings: "dict[str, Any]", state_dir: str, *, patient: bool, gpus: bool = True
) -> "Node | None":
    """The node as it is now, its capabilities still unread; None while no driver is loaded.

    *patient*: wait for a GPU whose files do not come, up to `gpushim.driver-timeout`; else it is given
    `fault`. *gpus* False leaves them unread.
    """
    roots = Roots(settings)
    node = Node(roots, read_majors(roots.proc))
    if node.gpu_major() is None:
        return None
    if gpus:
        timeout = settings["gpushim.driver-timeout"]
        node.gpus = read_gpus(roots, state_dir, timeout if patient else QUICK)
    return node


def read_capabilities(node: Node, *, management: bool) -> None:
    """The instances of the node's GPUs, and mig/config and mig/monitor if *management*."""
    if management or _has_instances(node):
        _walk_capabilities(node)


def look_up(node: Node, devices: "list[Device]") -> None:
    """Give each device what the host's node says, or the driver where there is no such node yet."""
    params = None
    stats = _stat([node.roots.dev + device.path for device in devices])
    for device, (error, mode, major, minor, uid, gid) in zip(devices, stats, strict=True):
        if not error and mode & 0o170000 == 0o020000:
            device.host = (major, minor)
            device.mode, device.uid, device.gid = mode & 0o777, uid & _ID, gid & _ID
        elif device.file_mode is not None:
            device.mode = device.file_mode & 0o777
        else:
            params = params or _read_params(node.roots.proc)
            device.mode, device.uid, device.gid = params


def _stat(paths: list[str]) -> list[list[int]]:
    """As linux.stat_many. A dozen calls are quicker made from here than the C part is loaded."""
    if len(paths) > 64:
        from gpushim import linux

        return linux.stat_many(paths)
    return [_stat_one(path) for path in paths]


def _stat_one(path: str) -> list[int]:
    try:
        found = os.lstat(path)
    except OSError as problem:
        return [problem.errno or 0, 0, 0, 0, 0, 0]
    rdev = found.st_rdev
    return [0, found.st_mode, os.major(rdev), os.minor(rdev), found.st_uid, found.st_gid]


def _read_params(proc: str) -> tuple[int, int, int]:
    """Mode, uid and gid that the driver gives its nodes (/proc/driver/nvidia/params, NVreg_DeviceFile*)."""
    found = {}
    try:
        for line in decode(files.read(proc + "/driver/nvidia/params")).split("\n"):
            name, _, value = line.partition(":")
            if value.strip().isdigit():
                found[name.strip()] = int(value)
    except OSError:
        pass  # the driver's own defaults, then
    mode = found.get("DeviceFileMode", 0o666) & 0o777
    return mode, found.get("DeviceFileUID", 0), found.get("DeviceFileGID", 0)


def read_majors(proc: str) -> dict[str, int]:
    """Name → major of the character devices that start with `nvidia`; of a name listed twice the first."""
    text = decode(files.read(proc + "/devices")).partition("Block devices:")[0]
    majors: dict[str, int] = {}
    for line in text.split("\n"):
        number, _, name = line.strip().partition(" ")
        if name.startswith("nvidia") and number.isdigit():
            majors.setdefault(name, int(number))
    return majors


def read_gpus(roots: Roots, state_dir: str, timeout: float) -> list[Gpu]:
    """The GPUs in PCI order, from the state directory as long as this load of the driver holds."""
    directory = roots.proc + "/driver/nvidia/gpus"
    try:
        buses = sorted(os.listdir(directory), key=_pci_order)
    except FileNotFoundError:
        return []
    load = _load_of_the_driver(roots, buses)
    rows = _kept(state_dir, load, timeout)
    if rows is None:
        rows = _read_information(directory, buses, timeout)
        data = {"load": load, "until": _until(rows), "timeout": timeout, "gpus": rows}
        state.keep(state_dir, CACHE, dumps(data).encode())
    included = [row for row in rows if not row["excluded"]]
    return [
        Gpu(index, row["bus"], row["minor"], row["uuid"], row["model"], row["fault"])
        for index, row in enumerate(included)
    ]


def _pci_order(bus: str) -> tuple[int, ...]:
    # The domain is printed with 4 or with 8 digits.
    try:
        return tuple([int(part, 16) for part in bus.replace(".", ":").split(":")])
    except ValueError:
        return (1 << 32,)


def _load_of_the_driver(roots: Roots, buses: list[str]) -> "list[Any]":
    """What stays the same from one loading of the driver to its unloading."""
    try:
        boot = decode(files.read(roots.proc + "/sys/kernel/random/boot_id")).strip()
    except OSError:
        boot = ""
    try:
        # The number only: sysfs makes up the times anew whenever it forgets an inode.
        module = os.stat(roots.sys + "/module/nvidia").st_ino
    except OSError:
        module = 0
    return [boot, module, roots.proc, roots.sys, buses]


def _kept(state_dir: str, load: "list[Any]", timeout: float) -> "list[dict[str, Any]] | None":
    data = state.read(state_dir, CACHE)
    if data is None:
        return None
    try:
        kept = loads(decode(data))
        if kept["load"] != load:
            return None
        if kept["until"] and not 0 <= kept["until"] - time.time() <= RETRY:
            return None
        # A GPU that did not answer in a short time is asked again by whoever can wait longer.
        if kept["until"] and kept["timeout"] < timeout:
            return None
        rows: list[dict[str, Any]] = kept["gpus"]
    except (ValueError, KeyError, TypeError):
        return None  # of another version: made anew
    return rows


def _until(rows: "list[dict[str, Any]]") -> float:
    """When to look again: 0 is never, as long as the driver stays loaded."""
    if any(row["fault"] for row in rows):
        return time.time() + RETRY
    if any(not row["uuid"] for row in rows):
        return time.time() + RETRY_UUID
    return 0


def _read_information(directory: str, buses: list[str], timeout: float) -> "list[dict[str, Any]]":
    from gpushim import linux

    paths = [f"{directory}/{bus}/information" for bus in buses]
    read = linux.read_files(paths, min(PATIENCE, timeout / 2), timeout) if paths else []
    rows = [_row(bus, *answer, timeout) for bus, answer in zip(buses, read, strict=True)]
    _mark_doubles(rows)
    return rows


def _mark_doubles(rows: "list[dict[str, Any]]") -> None:
    """Two GPUs of one minor or UUID: nobody can tell which of them a container would get."""
    for field in ("minor", "uuid"):
        values = [row[field] for row in rows]
        for row in rows:
            if row[field] not in (-1, "") and values.count(row[field]) > 1 and not row["fault"]:
                row["fault"] = f"another GPU has the same {field}, {row[field]}"


def _row(bus: str, error: int, data: bytes, timeout: float) -> "dict[str, Any]":
    row = {"bus": bus, "minor": -1, "uuid": "", "model": "", "excluded": False, "fault": ""}
    if error:
        row["fault"] = _fault(error, "ETIMEDOUT", f"{_LATE}{timeout:g} s")
        return row
    fields = {}
    for line in decode(data).split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
    minor = fields.get("Device Minor", "")
    if minor.isdigit() and minor.isascii() and len(minor) < 8:
        row["minor"] = int(minor)
    else:
        row["fault"] = f"its information file has no usable Device Minor ({minor!r})"
    uuid = fields.get("GPU UUID", "")
    row["uuid"] = uuid if uuid.startswith("GPU-") and "?" not in uuid else ""
    row["model"] = fields.get("Model", "")
    row["excluded"] = fields.get("GPU Excluded", "").lower() == "yes"
    return row


def _fault(error: int, name: str, words: str) -> str:
    """*words* where *error* is the errno *name*, else what the C library calls it."""
    import errno  # 0.1 ms that a healthy node does not pay

    return words if error == getattr(errno, name) else os.strerror(error)


def read_imex_channels(node: Node) -> None:
    """The channels whose nodes the administrator made."""
    names = _entries(node.roots.dev + "/dev/nvidia-caps-imex-channels")
    numbers = [name.removeprefix("channel") for name in names if name.startswith("channel")]
    node.imex_channels = sorted(
        [int(one) for one in numbers if one.isdigit() and one.isascii() and len(one) < 8]
    )


def read_drm(node: Node) -> None:
    """The DRM nodes of each GPU: nvidia-drm makes a card and a render node (drm-uapi.rst)."""
    for gpu in node.gpus:
        names = _entries(f"{node.roots.sys}/bus/pci/devices/{gpu.bus}/drm")
        gpu.drm = sorted([name for name in names if drm_minor(name) >= 0])


def drm_minor(name: str) -> int:
    """N of cardN and renderDN, which is the minor number of major 226; -1 for other names."""
    number = name.removeprefix("card").removeprefix("renderD")
    return int(number) if number != name and number.isdigit() and number.isascii() and len(number) < 6 else -1


def _has_instances(node: Node) -> bool:
    """Whether any GPU is split: on a node without MIG the C part, 0.6 ms to load, has nothing to walk."""
    directory = node.roots.proc + "/driver/nvidia/capabilities"
    return any(_entries(f"{directory}/gpu{gpu.minor}/mig") for gpu in node.gpus)


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []  # a driver from before MIG, or a GPU that cannot be read


def _walk_capabilities(node: Node) -> None:
    from gpushim import linux

    directory = node.roots.proc + "/driver/nvidia/capabilities"
    try:
        rows = linux.capabilities(directory)
    except FileNotFoundError:
        return  # a driver from before MIG
    by_minor = {gpu.minor: gpu for gpu in node.gpus}
    rows.sort()
    for gpu_minor, gi, ci, minor, mode, error in rows:
        fault = _fault(error, "EINVAL", "holds no minor and mode") if error else ""
        capability = Capability(minor, mode, fault)
        if gpu_minor == -1:
            if gi == 0:
                node.config = capability
            else:
                node.monitor = capability
            continue
        gpu = by_minor.get(gpu_minor)
        if gpu is None:
            continue
        instance = gpu.instances.get(gi)
        if instance is None:
            instance = gpu.instances[gi] = Instance()
        if ci == -1:
            instance.access = capability
        else:
            instance.computes[ci] = capability


def whole(capability: "Capability | None", what: str) -> Capability:
    """*capability*, which must be there and readable; InvalidNode names *what*."""
    if capability is None:
        raise InvalidNode("GS0402", f"{what}: has no access file in the kernel")
    if capability.fault:
        raise InvalidNode("GS0403", f"{what}: its access file: {capability.fault}")
    return capability
