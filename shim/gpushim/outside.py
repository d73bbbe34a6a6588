"""Devices that are asked for by annotations and by mounts, which only an engine's user can write. Pure.

Source: the NVIDIA Container Toolkit's `accept-nvidia-visible-devices-as-volume-mounts` and annotation
prefixes.
"""

from gpushim.request import IMEX_CHANNELS, channel, items_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOUNTS = "/var/run/nvidia-container-devices"


class Selected:
    """What these sources ask for: nothing where `items` and `imex` are empty."""

    __slots__ = ("imex", "items", "kind", "source")

    def __init__(self, source: str, kind: str, items: list[str], imex: tuple[str, ...] = ()) -> None:
        self.source = source
        self.kind = kind
        self.items = items
        self.imex = imex


def selected(config: "dict[str, Any]", settings: "dict[str, Any]") -> Selected:
    """The devices of annotations, else those of mounts."""
    mounts = Selected(f"mounts below {MOUNTS}", "devices-mount", [])
    if settings["accept-nvidia-visible-devices-as-volume-mounts"]:
        mounts = _by_mounts(config)
    annotations = _by_annotations(config, settings)
    if annotations.items:
        annotations.imex = mounts.imex
        return annotations
    return mounts


def _by_annotations(config: "dict[str, Any]", settings: "dict[str, Any]") -> Selected:
    annotations = config.get("annotations") or {}
    # podman copies the annotations of an image beside the user's: who wrote one cannot be told.
    podman = annotations.get("io.container.manager") == "libpod"
    if podman and not settings["gpushim.annotations-under-podman"]:
        return Selected("", "", [])
    prefixes = settings["gpushim.annotation-prefixes"]
    keys = sorted([key for key in annotations if any(key.startswith(prefix) for prefix in prefixes)])
    items: list[str] = []
    for key in keys:
        value = annotations[key]
        if isinstance(value, str):
            items += items_of(value)
    source = "annotation " + " and ".join(keys)
    return Selected(source if len(source) < 200 else f"{source[:200]}…", "devices-annotation", items)


def _by_mounts(config: "dict[str, Any]") -> Selected:
    """A mount of /dev/null stands for the device that the rest of its destination names."""
    items: list[str] = []
    imex: list[str] = []
    source = f"mounts below {MOUNTS}"
    for mount in config.get("mounts") or ():
        destination = _clean(mount.get("destination"))
        if _clean(mount.get("source")) != "/dev/null" or not destination.startswith(MOUNTS + "/"):
            continue
        name = destination[len(MOUNTS) + 1 :]
        if name.startswith("imex/"):
            one = name[5:]
            imex.append(one if one == "all" else channel(f"{source}: {IMEX_CHANNELS}", one))
        elif name.startswith("cdi/"):
            items.append(_cdi(name[4:]))
        else:
            items.append(name)
    channels = ("all",) if "all" in imex else tuple(dict.fromkeys(imex))
    return Selected(source, "devices-mount", list(dict.fromkeys(items)), channels)


def _cdi(name: str) -> str:
    """`vendor/class=device`, also where it is written `vendor/class/device`, as some engines need it."""
    if "=" in name or name.count("/") < 2:
        return name
    vendor, kind, device = name.split("/", 2)
    return f"{vendor}/{kind}={device}"


def _clean(path: "Any") -> str:
    if not isinstance(path, str) or not path.startswith("/"):
        return ""
    return "/" + "/".join([part for part in path.split("/") if part not in ("", ".")])
