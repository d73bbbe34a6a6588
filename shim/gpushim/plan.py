"""From a selection of devices to edits of a config, each with its reason. Pure."""

from gpushim import __version__
from gpushim.edits import AddDevice, AddGroup, AddMount, AllowDevice, Annotate, RemoveHook
from gpushim.errors import InvalidNode
from gpushim.present import Present
from gpushim.request import INJECTED, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.edits import Edit
    from gpushim.node import Node
    from gpushim.policy import Subject
    from gpushim.selection import Device, Selection

HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "gpushim-hook")
STAGES = ("prestart", "createRuntime")


class Plan:
    """What comes of one request: edits, and what the administrator should know."""

    __slots__ = ("edits", "warnings")

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.warnings: list[str] = []


def plan(
    config: "dict[str, Any]",
    request: Request,
    selection: "Selection",
    subject: "Subject",
    node: "Node",
    *,
    crun: bool,
    groups: bool,
    live: bool = False,
) -> Plan:
    """What *config* lacks of *selection*.

    *crun*: the runtime is crun, which filters nothing while a config has no rule at all. *groups*: the
    process may be put into the groups that own the nodes. *live*: whoever applies the edits can make nodes
    that open in a user namespace too, and has no annotation to write.
    """
    out = Plan()
    present = Present(config, crun=crun)
    covers = [present.cover(device.path) for device in selection.devices]
    binds = subject.user_namespace and not live
    for device, cover in zip(selection.devices, covers, strict=True):
        _check_host(device, out, binds=binds)
        if not cover and present.lacks(device):
            out.edits.append(_bind(device, node) if binds else _make(device))
            if binds and not _opens_for_others(device):
                out.warnings.append(
                    f"{device.path}: the host's node has mode {device.mode:04o} and is root's: nobody in a "
                    "user namespace can open it"
                )
        if present.denies(device.major, device.minor, device.access):
            out.edits.append(AllowDevice(device.major, device.minor, device.access, device.why))
        joins = groups and not subject.user_namespace and _needs_group(device)
        if joins and present.lacks_group(device.gid):
            out.edits.append(AddGroup(device.gid, f"{device.path} belongs to this group"))
    if selection.later_instances:
        caps = node.majors["nvidia-caps"]
        if present.denies(caps, None, "r"):
            words = request.extras.get("mig-config") or request.extras["management"]
            why = f"{words}: instances that are made later"
            out.edits.append(AllowDevice(caps, None, "r", why))
    for name, words in request.features.items():
        for source, path in node.features[name].files:
            if present.mounts_nothing_at(path):
                options = ("ro", "nosuid", "nodev", "rbind", "rprivate")
                out.edits.append(AddMount(source, path, options, words))
    _warn_of_covers(selection.devices, covers, out)
    value = _record(selection, request)
    if not live and (config.get("annotations") or {}).get(INJECTED) != value:
        out.edits.append(Annotate(value, "a record of what was given"))
    return out


def _check_host(device: "Device", out: Plan, *, binds: bool) -> None:
    """A container in a user namespace is given the host's node; any other one of the kernel's numbers."""
    numbers = (device.major, device.minor)
    if device.host == numbers:
        return
    if device.host is None and device.must_exist:
        raise InvalidNode(
            "GS0413",
            f"{device.why}: {device.path} is not on this host",
            hint="the administrator makes it: mknod(1)",
        )
    if device.host is None:
        state = "is not on this host"
    else:
        state = (
            f"the host's node is {device.host[0]}:{device.host[1]} and the kernel says "
            f"{numbers[0]}:{numbers[1]}"
        )
    if binds:
        raise InvalidNode(
            "GS0406",
            f"{device.path}: {state}, and a container in a user namespace is given the host's node",
            hint="gpushim node prepare, as root, makes and mends the nodes of this host",
        )
    if device.host is not None:
        out.warnings.append(f"{device.path}: {state}: the kernel's numbers are given")


def _warn_of_covers(devices: "list[Device]", covers: list[str], out: Plan) -> None:
    for cover in dict.fromkeys(covers):
        paths = [device.path for device, over in zip(devices, covers, strict=True) if over == cover]
        if cover and cover not in paths:
            out.warnings.append(
                f"the container has a bind mount at {cover}: {', '.join(paths)} would land in what is "
                "mounted there, so no node is made; the rules are"
            )


def without_hooks(config: "dict[str, Any]", out: Plan) -> None:
    """NVIDIA's hooks and our own, taken out since this program has answered the request they would answer."""
    hooks = config.get("hooks") or {}
    for stage in STAGES:
        for path in dict.fromkeys([hook.get("path") for hook in hooks.get(stage) or ()]):
            if isinstance(path, str) and path.rpartition("/")[2] in HOOKS:
                out.edits.append(RemoveHook(stage, path, "the request is answered already"))


def without_record(config: "dict[str, Any]", out: Plan) -> None:
    """Our annotation, taken out where nothing was given: it came with the image, say."""
    if INJECTED in (config.get("annotations") or {}):
        out.edits.append(Annotate(None, "it is not from us"))


def _make(device: "Device") -> AddDevice:
    return AddDevice(
        device.path,
        device.major,
        device.minor,
        device.mode,
        device.uid,
        device.gid,
        device.why,
    )


def _bind(device: "Device", node: "Node") -> AddMount:
    # mknod(2) is refused in a user namespace (fs/namei.c, vfs_mknod), so the host's node itself is shown.
    options = ("bind", "nosuid", "noexec", "rprivate")
    return AddMount(node.roots.dev + device.path, device.path, options, device.why)


def _opens_for_others(device: "Device") -> bool:
    wanted = sum([4 if letter == "r" else 2 for letter in device.access if letter in "rw"])
    return device.mode & wanted == wanted


def _needs_group(device: "Device") -> bool:
    return device.gid != 0 and device.mode & 0o006 != 0o006


def _record(selection: "Selection", request: Request) -> str:
    words = [__version__]
    if selection.gpus:
        words.append("gpus=" + ",".join([str(gpu.index) for gpu in selection.gpus]))
        instances = sum([len(gpu.instances) for gpu in selection.gpus])
        if instances:
            words.append(f"instances={instances}")
    words += sorted(request.extras)
    return " ".join(words)
