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
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
# Our own annotation, a record for people: it asks for nothing, and one that comes in is not from us.
INJECTED = "dev.gpushim/injected"

# Each asks by the one word `enabled`.
FEATURES = {
    "gds": "NVIDIA_GDS",
    "mofed": "NVIDIA_MOFED",
    "gdrcopy": "NVIDIA_GDRCOPY",
    "nvswitch": "NVIDIA_NVSWITCH",
}

_MIG = (("mig-monitor", MIG_MONITOR), ("mig-config", MIG_CONFIG))

CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEFAULT_CAPABILITIES = ("compute", "utility")


class Request:
    """A container's wishes: what, and which words of its config they stand in.

    `devices` is `("all",)`, or device names in the order asked (none of them for a container that wants the
    driver and no GPU); `source` is the variable they come from and `kind` the kind of policy that decides on
    them. `extras` are the other kinds that are asked for, with the words that ask: `mig-monitor`, `mig-
    config`, `management`, `imex`, `nvswitch`, `features`. `management` and `imex` are the names asked for by
    these, `("all",)` or some; `features` are those of FEATURES, with the words that ask.
    """

    __slots__ = (
        "capabilities",
        "devices",
        "extras",
        "features",
        "imex",
        "kind",
        "management",
        "source",
        "words",
    )

    def __init__(
        self,
        devices: tuple[str, ...],
        source: str,
        *,
        words: str = "",
        kind: str = "devices-env",
        capabilities: tuple[str, ...] = DEFAULT_CAPABILITIES,
        extras: "dict[str, str] | None" = None,
        management: tuple[str, ...] = (),
        imex: tuple[str, ...] = (),
        features: "dict[str, str] | None" = None,
    ) -> None:
        self.devices = devices
        self.source = source
        self.words = words
        self.kind = kind
        self.capabilities = capabilities
        self.extras = extras or {}
        self.management = management
        self.imex = imex
        self.features = features or {}

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
            extras={kind: words for kind, words in self.extras.items() if kind not in kinds},
            management=() if "management" in kinds else self.management,
            imex=() if "imex" in kinds else self.imex,
            features={name: words for name, words in self.features.items() if _kind_of(name) not in kinds},
        )

    def kinds(self) -> list[tuple[str, str]]:
        """Each kind of policy that must agree, with the words that ask for it."""
        return [(self.kind, self.source), *self.extras.items()]


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
    source, items = _by_environment(env, settings)
    # Whoever sets it wants no GPU, whatever an engine or a device plugin adds.
    if "void" in items or "void" in items_of(env.get(VISIBLE_DEVICES, "")):
        return None
    kind, imex = "devices-env", _imex(env, settings)
    if settings["accept-nvidia-visible-devices-as-volume-mounts"] or settings["gpushim.annotation-prefixes"]:
        from gpushim import outside  # sources that most nodes have switched off

        higher = outside.selected(config, settings)
        if higher.items:
            source, items, kind = higher.source, higher.items, higher.kind
        imex = higher.imex or imex
    if not items or "void" in items:
        return None
    extras = {name: variable for name, variable in _MIG if _all(env, variable)}
    features = {name: variable for name, variable in FEATURES.items() if env.get(variable) == "enabled"}
    management: tuple[str, ...] = ()
    if any("=" in item for item in items):
        from gpushim import cdi_names

        named = cdi_names.split(source, items, settings if kind == "devices-env" else None)
        items, management = named.devices, named.management
        imex = imex or named.imex
        extras |= named.extras
        features |= named.features
    if settings["features.ignore-imex-channel-requests"]:
        imex = ()
        extras.pop("imex", None)
    if imex:
        extras.setdefault("imex", IMEX_CHANNELS)
    for name, words in features.items():
        kind_of = _kind_of(name)
        extras[kind_of] = f"{extras[kind_of]} and {words}" if kind_of in extras else words
    return Request(
        _meaning(source, items),
        source,
        words=",".join(items),
        kind=kind,
        capabilities=_capabilities(env, settings, source == "CUDA_VERSION"),
        extras=extras,
        management=management,
        imex=imex,
        features=features,
    )


def _kind_of(feature: str) -> str:
    """The kind of policy that decides on *feature*."""
    return "nvswitch" if feature == "nvswitch" else "features"


def _by_environment(env: dict[str, str], settings: "dict[str, Any]") -> tuple[str, list[str]]:
    """The variable that selects devices, and its items."""
    swarm = [name for name in items_of(settings["swarm-resource"]) if name in env]
    if swarm:
        return " and ".join(swarm), items_of(",".join([env[name] for name in swarm]))
    if VISIBLE_DEVICES in env:
        return VISIBLE_DEVICES, items_of(env[VISIBLE_DEVICES])
    # A CUDA image from before the variables: asking for everything was what starting it meant.
    if env.get("CUDA_VERSION") and not env.get("NVIDIA_REQUIRE_CUDA"):
        return "CUDA_VERSION", ["all"]
    return "", []


def items_of(value: str) -> list[str]:
    return [item for item in [part.strip() for part in value.split(",")] if item]


def _imex(env: dict[str, str], settings: "dict[str, Any]") -> tuple[str, ...]:
    """The IMEX channels of the environment; `all` is nothing that an image may ask for, nor is `none`."""
    items = items_of(env.get(IMEX_CHANNELS, ""))
    if not items or settings["features.ignore-imex-channel-requests"]:
        return ()
    if "void" in items or "all" in items or "none" in items:
        return ()
    return tuple([channel(IMEX_CHANNELS, item) for item in items])


def channel(source: str, item: str) -> str:
    """The decimal number of the IMEX channel *item*, `N` or `channelN`; InvalidRequest where it is none."""
    digits = item.removeprefix("channel")
    if digits.isdigit() and digits.isascii() and len(digits) < 8 and int(digits) < 1 << 20:
        return str(int(digits))
    raise InvalidRequest(
        "GS0207", f"{source}: unknown IMEX channel {shown(item)}", hint="write its number: 0, or channel0"
    )


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
    known = tuple(c for c in CAPABILITIES if c in items_of(supported))
    items = items_of(env.get(DRIVER_CAPABILITIES, ""))
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
