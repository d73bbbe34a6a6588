"""CDI names that mean something on this node without a file. Pure.

Source: CDI specification 1.1.0, "Kind" and "Device": vendor/class=device.
"""

from gpushim.errors import InvalidRequest, Refused, shown
from gpushim.request import FEATURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KINDS = {
    "nvidia.com/gpu": "gpu",
    "runtime.nvidia.com/gpu": "gpu",
    "management.nvidia.com/gpu": "management",
    "nvidia.com/mig-config": "mig-config",
    "nvidia.com/mig-monitor": "mig-monitor",
    "nvidia.com/imex-channel": "imex",
    **{f"nvidia.com/{name}": name for name in FEATURES},
}


class Named:
    """What a list of items asks for once its CDI names are read."""

    __slots__ = ("devices", "extras", "features", "imex", "management")

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.management: tuple[str, ...] = ()
        self.imex: tuple[str, ...] = ()
        self.extras: dict[str, str] = {}
        self.features: dict[str, str] = {}


def split(source: str, items: list[str], settings: "dict[str, Any] | None") -> Named:
    """Read *items*, some of which are CDI names.

    *settings* where they come from an environment: an image may name devices of `gpushim.cdi-env-vendors`
    only, since another vendor's file can carry hooks that run on the host. None: whoever wrote them may name
    any.
    """
    out = Named()
    for item in items:
        if "=" not in item:
            out.devices.append(item)
            continue
        _take(out, source, item, settings)
    if not out.devices:
        out.devices.append("none")  # the driver, and what is named beside it
    if len(out.devices) > 1 and "none" in out.devices:
        out.devices = [name for name in out.devices if name != "none"]
    return out


def _take(out: Named, source: str, item: str, settings: "dict[str, Any] | None") -> None:
    kind, _, name = item.partition("=")
    vendor, slash, _ = kind.partition("/")
    if not slash or not vendor or not name:
        raise InvalidRequest(
            "GS0208", f"{source}: {shown(item)} is no CDI name", hint="it has the form vendor/class=device"
        )
    if settings is not None and vendor not in settings["gpushim.cdi-env-vendors"]:
        raise Refused(
            "GS0302",
            f"{source}: {shown(item)}: an environment may not name devices of vendor {shown(vendor)}",
            hint="gpushim.cdi-env-vendors lists the vendors that it may name",
        )
    meaning = _KINDS.get(kind)
    words = f"{source}: {item}"
    if meaning == "gpu":
        out.devices.append(name)
    elif meaning == "management":
        out.management = ("all",) if "all" in (name, *out.management) else (*out.management, name)
        out.extras["management"] = words
    elif meaning == "imex":
        from gpushim.request import channel

        one = name if name == "all" else channel(words, name)
        out.imex = ("all",) if "all" in (one, *out.imex) else (*out.imex, one)
        out.extras["imex"] = words
    elif meaning is not None:
        if name != "all":
            raise InvalidRequest("GS0209", f"{words}: unknown device", hint=f"the one device is {kind}=all")
        if meaning in FEATURES:
            out.features[meaning] = words
        else:
            out.extras[meaning] = words
    else:
        raise InvalidRequest(
            "GS0210",
            f"{words}: unknown kind {shown(kind)}",
            hint=f"without CDI files, which are not read yet, the kinds are {', '.join(_KINDS)}",
        )
