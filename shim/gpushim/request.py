"""What a container asks for, read from its config.

Source: the NVIDIA Container Toolkit's documented variables. Pure: takes the parsed config and the effective
settings, touches nothing.
"""

from gpushim.errors import InvalidRequest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
MIG_MONITOR = "NVIDIA_MIG_MONITOR_DEVICES"
MIG_CONFIG = "NVIDIA_MIG_CONFIG_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
# Our own annotation, a record for people: it asks for nothing, and one that comes in is not from us.
INJECTED = "dev.gpushim/injected"

CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEFAULT_CAPABILITIES = ("compute", "utility")


class Request:
    """A container's wishes: what, and which words of its config they stand in.

    `devices` is `("all",)`, or device names in the order asked (none of them for a container that wants the
    driver and no GPU); `source` is the variable they come from and `kind` the kind of policy that decides on
    it.
    """

    __slots__ = ("capabilities", "devices", "kind", "mig_config", "mig_monitor", "source", "words")

    def __init__(
        self,
        devices: tuple[str, ...],
        source: str,
        *,
        words: str = "",
        kind: str = "devices-env",
        capabilities: tuple[str, ...] = DEFAULT_CAPABILITIES,
        mig_monitor: bool = False,
        mig_config: bool = False,
    ) -> None:
        self.devices = devices
        self.source = source
        self.words = words
        self.kind = kind
        self.capabilities = capabilities
        self.mig_monitor = mig_monitor
        self.mig_config = mig_config

    def without(self, kinds: list[str]) -> "Request":
        """This request, less what *kinds* of policy refused."""
        if not kinds:
            return self
        return Request(
            self.devices,
            self.source,
            words=self.words,
            kind=self.kind,
            capabilities=self.capabilities,
            mig_monitor=self.mig_monitor and "mig-monitor" not in kinds,
            mig_config=self.mig_config and "mig-config" not in kinds,
        )

    def kinds(self) -> list[tuple[str, str]]:
        """Each kind of policy that must agree, with the variable that asks for it."""
        out = [(self.kind, self.source)]
        if self.mig_monitor:
            out.append(("mig-monitor", MIG_MONITOR))
        if self.mig_config:
            out.append(("mig-config", MIG_CONFIG))
        return out


def environment(config: "dict[str, Any]") -> dict[str, str]:
    """The container's variables; of one set twice the last counts, and an entry without `=` is none."""
    env = {}
    for entry in (config.get("process") or {}).get("env") or ():
        name, equals, value = entry.partition("=")
        if equals:
            env[name] = value
    return env


def requested(config: "dict[str, Any]", settings: "dict[str, Any]") -> Request | None:
    """What *config* asks for; None when nothing, InvalidRequest when it cannot be understood."""
    env = environment(config)
    source, items = _devices(env, settings)
    if not items or "void" in items:
        return None
    legacy = source == "CUDA_VERSION"
    return Request(
        _meaning(source, items),
        source,
        words=",".join(items),
        capabilities=_capabilities(env, settings, legacy),
        mig_monitor=_all(env, MIG_MONITOR),
        mig_config=_all(env, MIG_CONFIG),
    )


def _devices(env: dict[str, str], settings: "dict[str, Any]") -> tuple[str, list[str]]:
    """The variable that selects devices, and its items."""
    swarm = [name for name in _items(settings["swarm-resource"]) if name in env]
    if swarm:
        return " and ".join(swarm), _items(",".join([env[name] for name in swarm]))
    if VISIBLE_DEVICES in env:
        return VISIBLE_DEVICES, _items(env[VISIBLE_DEVICES])
    # A CUDA image from before the variables: asking for everything was what starting it meant.
    if env.get("CUDA_VERSION") and not env.get("NVIDIA_REQUIRE_CUDA"):
        return "CUDA_VERSION", ["all"]
    return "", []


def _items(value: str) -> list[str]:
    return [item for item in [part.strip() for part in value.split(",")] if item]


def _meaning(source: str, items: list[str]) -> tuple[str, ...]:
    if "none" in items:
        if any(item != "none" for item in items):
            raise InvalidRequest(
                "GS0201",
                f"{source}: 'none' stands with other devices in {shown(','.join(items))}",
                hint="name the devices, or 'none' alone for the driver without a GPU",
            )
        return ()
    if "all" in items:
        return ("all",)
    return tuple(dict.fromkeys(items))


def _all(env: dict[str, str], name: str) -> bool:
    """Whether the MIG variable *name* asks; `all` is the one value it has."""
    value = env.get(name, "")
    if value and value.strip().lower() != "all":
        raise InvalidRequest(
            "GS0202", f"{name}: unknown value {shown(value)}", hint="the one value it can have is 'all'"
        )
    return value != ""


def _capabilities(env: dict[str, str], settings: "dict[str, Any]", legacy: bool) -> tuple[str, ...]:
    supported = settings["supported-driver-capabilities"]
    known = tuple(c for c in CAPABILITIES if c in _items(supported))
    items = _items(env.get(DRIVER_CAPABILITIES, ""))
    if settings["gpushim.driver-capabilities"] == "all" or (legacy and not items):
        return known
    if not items:
        return tuple(c for c in DEFAULT_CAPABILITIES if c in known)
    for item in items:
        if item != "all" and item not in CAPABILITIES:
            raise InvalidRequest(
                "GS0203",
                f"{DRIVER_CAPABILITIES}: unknown capability {shown(item)}",
                hint=f"the capabilities are {', '.join(CAPABILITIES)} and all",
            )
        if item != "all" and item not in known:
            raise InvalidRequest(
                "GS0204",
                f"{DRIVER_CAPABILITIES}: {item!r} is not allowed on this node",
                hint=f"supported-driver-capabilities in config.toml is {','.join(known)!r}",
            )
    return known if "all" in items else tuple(c for c in CAPABILITIES if c in items)
