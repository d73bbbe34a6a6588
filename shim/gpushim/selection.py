"""Which devices a request comes to on this node, each with its reason. Pure."""

from gpushim.errors import InvalidNode
from gpushim.names import Names, is_mig_index, number
from gpushim.node import Capability, Gpu, Node, drm_minor, whole
from gpushim.request import DRIVER_CAPABILITIES, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.identity import NvmlDevice

# Fixed in kernel-open/common/inc/nv.h and nvidia-uvm; the majors are not.
_NVIDIACTL = 255
_MODESET = 254
_UVM = 0
_UVM_TOOLS = 1
_DRM = 226  # include/drm/drm_file.h, DRM_MAJOR

_CAPS = "/dev/nvidia-caps/nvidia-cap"


class Device:
    """One device the container is to have: *access* is what its cgroup rule gives.

    `mode`, `uid` and `gid` are those of the host's node, which node.look_up fills in: `host` is its numbers,
    None where there is none. *file_mode* is what the kernel's capability file says, None for devices that
    have no such. `must_exist`: without the host's node there is none to give.
    """

    __slots__ = (
        "access",
        "file_mode",
        "gid",
        "host",
        "major",
        "minor",
        "mode",
        "must_exist",
        "path",
        "uid",
        "why",
    )

    def __init__(
        self,
        path: str,
        major: int,
        minor: int,
        access: str,
        why: str,
        file_mode: "int | None" = None,
    ) -> None:
        self.path = path
        self.major = major
        self.minor = minor
        self.access = access
        self.why = why
        self.file_mode = file_mode
        self.host: tuple[int, int] | None = None
        self.mode = self.uid = self.gid = 0
        self.must_exist = False


class Selection:
    """The devices a request comes to, what is not given and why, and what the administrator should know."""

    __slots__ = ("devices", "gpus", "later_instances", "warnings", "withheld")

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.gpus: list[Gpu] = []
        self.later_instances = False
        self.withheld: list[tuple[str, str]] = []
        self.warnings: list[str] = []


def must_wait(request: Request, node: Node) -> bool:
    """Whether *request* hangs on a GPU whose files did not come in the short time."""
    late = [gpu.index for gpu in node.gpus if gpu.late]
    if not late:
        return False
    names = (*request.devices, *request.management)
    if "all" in names:
        return True
    known = {gpu.uuid.lower() for gpu in node.gpus}
    for name in names:
        index, _, mig = name.partition(":")
        if number(index) in late and (not mig or number(mig) >= 0):
            return True
        parent = name[4:].partition("/")[0] if name.startswith("MIG-GPU-") else name
        if parent.startswith("GPU-") and parent.lower() not in known:
            return True
    return False


def needs_nvml(request: Request, node: Node) -> bool:
    """Whether *request* names something of which the kernel does not tell."""
    known = {gpu.uuid.lower() for gpu in node.gpus}
    unknown = any(not gpu.uuid and not gpu.fault for gpu in node.gpus)
    for name in (*request.devices, *request.management):
        if name.startswith("MIG-") and not name.startswith("MIG-GPU-"):
            return True
        if is_mig_index(name):
            return True
        if unknown and name.startswith("GPU-") and name.lower() not in known:
            return True
    return False


def select(request: Request, node: Node, identities: "list[NvmlDevice]") -> Selection:
    """The devices of *request* on *node*; UnknownDevice or InvalidNode when it cannot be had whole.

    *identities*: what NVML says, empty where `needs_nvml` is false.
    """
    out = Selection()
    parts = _parts(request, node, identities, out)
    out.gpus = [gpu for gpu, _ in parts]
    _control(request, node, out)
    major = node.gpu_major()
    assert major is not None  # a node without a driver never comes here
    for gpu in out.gpus:
        why = f"{request.source}: GPU {gpu.index}"
        out.devices.append(Device(f"/dev/nvidia{gpu.minor}", major, gpu.minor, "rw", why))
    _drm(request, parts, out)
    for gpu, migs in parts:
        _instances(request, gpu, migs, node, out)
    _management(request, node, out)
    _imex(request, node, out)
    _features(request, node, out)
    out.devices = _once(out.devices)
    return out


def _once(devices: list[Device]) -> list[Device]:
    """Each path once, with the first reason."""
    return list({device.path: device for device in reversed(devices)}.values())[::-1]


def _parts(
    request: Request, node: Node, identities: "list[NvmlDevice]", out: Selection
) -> "list[tuple[Gpu, set[tuple[int, int]] | None]]":
    """Each GPU that is asked for, in order, with its MIG devices as (gi, ci); None is all of it."""
    if "all" in (*request.devices, *request.management):
        for gpu in node.gpus:
            if gpu.fault:
                out.withheld.append((f"GPU {gpu.index}", f"{gpu.bus}: {gpu.fault}"))
                out.warnings.append(f"GPU {gpu.index} ({gpu.bus}) is left out: {gpu.fault}")
        return [(gpu, None) for gpu in node.gpus if not gpu.fault]
    found: dict[int, set[tuple[int, int]] | None] = {}
    for name in (*request.devices, *request.management):
        gpu, mig = Names(request.source, node, identities).resolve(name)
        if mig is None:
            found[gpu.index] = None
        else:
            migs = found.setdefault(gpu.index, set())
            if migs is not None:
                migs.add(mig)
    return [(node.gpus[index], found[index]) for index in sorted(found)]


def _control(request: Request, node: Node, out: Selection) -> None:
    """The nodes that belong to the driver and not to a GPU."""
    asked = request.capabilities
    by = f"{DRIVER_CAPABILITIES}: "
    major = node.gpu_major()
    assert major is not None
    ctl = node.majors.get("nvidiactl", major)
    out.devices.append(Device("/dev/nvidiactl", ctl, _NVIDIACTL, "rw", "every GPU container"))
    uvm = node.majors.get("nvidia-uvm")
    if "compute" not in asked and not request.management:
        out.withheld.append(("/dev/nvidia-uvm", f"{DRIVER_CAPABILITIES} does not name compute"))
    elif uvm is None:
        out.withheld.append(("/dev/nvidia-uvm", "the module nvidia-uvm is not loaded"))
        out.warnings.append(
            "the module nvidia-uvm is not loaded: CUDA finds no device until `modprobe nvidia-uvm`"
        )
    else:
        why = by + "compute" if "compute" in asked else request.extras["management"]
        out.devices.append(Device("/dev/nvidia-uvm", uvm, _UVM, "rw", why))
        out.devices.append(Device("/dev/nvidia-uvm-tools", uvm, _UVM_TOOLS, "rw", why))
    display = [by + name for name in ("graphics", "display") if name in asked]
    if request.management:
        display.append(request.extras["management"])
    # Since the 545 series each user of the major is listed; before it nothing tells.
    loaded = "nvidiactl" not in node.majors or "nvidia-modeset" in node.majors
    if not display:
        out.withheld.append(
            ("/dev/nvidia-modeset", f"{DRIVER_CAPABILITIES} names neither graphics nor display")
        )
    elif not loaded:
        out.withheld.append(("/dev/nvidia-modeset", "the module nvidia-modeset is not loaded"))
        out.warnings.append(
            "the module nvidia-modeset is not loaded: graphics needs `modprobe nvidia-modeset`"
        )
    else:
        modeset = node.majors.get("nvidia-modeset", major)
        out.devices.append(Device("/dev/nvidia-modeset", modeset, _MODESET, "rw", display[0]))


def _drm(request: Request, parts: "list[tuple[Gpu, set[tuple[int, int]] | None]]", out: Selection) -> None:
    """The DRM nodes of whole GPUs: a MIG device has no graphics."""
    asked = [name for name in ("graphics", "display") if name in request.capabilities]
    for gpu, migs in parts:
        if asked and migs is None and not gpu.instances:
            why = f"{DRIVER_CAPABILITIES}: {asked[0]}"
            out.devices += [Device(f"/dev/dri/{name}", _DRM, drm_minor(name), "rw", why) for name in gpu.drm]


def _capability(node: Node, capability: "Capability | None", what: str, why: str) -> Device:
    """A node of nvidia-caps. Reading it is enough: the driver looks at the descriptor, not at its mode."""
    found = whole(capability, what)
    major = node.majors.get("nvidia-caps")
    if major is None:
        raise InvalidNode("GS0405", f"{what}: nvidia-caps has no major number in /proc/devices")
    return Device(f"{_CAPS}{found.minor}", major, found.minor, "r", why, found.mode)


def _instances(
    request: Request, gpu: Gpu, migs: "set[tuple[int, int]] | None", node: Node, out: Selection
) -> None:
    for gi, instance in sorted(gpu.instances.items()):
        if migs is not None and gi not in [one[0] for one in migs]:
            continue
        what = f"GPU {gpu.index} instance {gi}"
        why = f"{request.source}: {what}"
        out.devices.append(_capability(node, instance.access, what, why))
        for ci, compute in sorted(instance.computes.items()):
            if migs is not None and (gi, ci) not in migs:
                continue
            what = f"GPU {gpu.index} instance {gi} compute {ci}"
            why = f"{request.source}: {what}"
            out.devices.append(_capability(node, compute, what, why))


def _management(request: Request, node: Node, out: Selection) -> None:
    for name, capability in (("mig-monitor", node.monitor), ("mig-config", node.config)):
        words = request.extras.get(name) or request.extras.get("management")
        if words is None:
            continue
        path = name.replace("-", "/")
        if capability is None:
            reason = f"this driver has no capability {path}"
            out.withheld.append((words, reason))
            out.warnings.append(f"{words}: {reason}: nothing is given")
            continue
        out.devices.append(_capability(node, capability, path, words))
        if name == "mig-config":
            # Whoever holds mig/config makes instances whose minors nobody knows yet, on any GPU: this
            # capability is not one GPU's. Here and nowhere else one rule covers every minor.
            out.later_instances = True


def _imex(request: Request, node: Node, out: Selection) -> None:
    """The channels asked for. The administrator makes their nodes: one that is not there is not to be had."""
    if not request.imex:
        return
    words = request.extras["imex"]
    major = node.majors.get("nvidia-caps-imex-channels")
    if major is None:
        raise InvalidNode("GS0412", f"{words}: this driver has no IMEX channels")
    minors = node.imex_channels if request.imex == ("all",) else sorted({int(one) for one in request.imex})
    for minor in minors:
        device = Device(f"/dev/nvidia-caps-imex-channels/channel{minor}", major, minor, "rw", words)
        device.must_exist = True
        out.devices.append(device)


def _features(request: Request, node: Node, out: Selection) -> None:
    """The nodes of other drivers, as the host has them; a feature without any is no error."""
    for name, words in request.features.items():
        nodes = node.features[name].nodes
        for path, major, minor in nodes:
            out.devices.append(Device(path, major, minor, "rw", words))
        if not nodes:
            reason = "this host has no node of it"
            out.withheld.append((words, reason))
            out.warnings.append(f"{words}: {reason}: nothing is given")
