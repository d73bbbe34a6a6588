"""What a container was given, for as long as it is there: our own word, which nobody but root can write.

Kept by container id and bundle in the state directory. The annotation in config.json is for people; this is
what `gpushim devices` compares with, and `gpushim repair` gives back.
"""

import posix as os
import time

from gpushim import state
from gpushim.json_text import decode, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.resolution import Resolution

SCHEMA = 1
_DIRECTORY = "containers"
_SWEPT = 2  # records that each create looks at


def keep(state_dir: str, container_id: str, bundle: str, resolution: "Resolution") -> bool:
    """Write down what *resolution* gave to the container; whether that went well."""
    directory = f"{state_dir}/{_DIRECTORY}"
    _sweep(directory)
    if not bundle.startswith("/"):
        bundle = os.getcwd() if bundle == "." else f"{os.getcwd()}/{bundle}"
    data = dumps(_record(container_id, bundle, resolution)).encode("ascii")
    return state.keep(directory, state.name_of(f"{container_id}\0{bundle}"), data)


def read_all(state_dir: str) -> "list[dict[str, Any]]":
    """Every record of a container whose bundle is still there."""
    directory = f"{state_dir}/{_DIRECTORY}"
    found = [_read(directory, name) for name in _names(directory)]
    return [one for one in found if one is not None and not _is_gone(one)]


def _record(container_id: str, bundle: str, resolution: "Resolution") -> "dict[str, Any]":
    selection = resolution.selection
    assert selection is not None
    return {
        "schema": SCHEMA,
        "id": container_id,
        "bundle": bundle,
        "made": int(time.time()),
        "devices": [[one.path, one.major, one.minor, one.access] for one in selection.devices],
        "later_instances": selection.later_instances,
        "gpus": [[gpu.index, gpu.minor, gpu.uuid] for gpu in selection.gpus],
        "migs": _migs(resolution),
    }


def _migs(resolution: "Resolution") -> "list[list[Any]]":
    """`[GPU's UUID, gi, ci, MIG UUID, minors]` of each MIG device; its UUID is empty without NVML's word."""
    selection = resolution.selection
    assert selection is not None
    given = [one.minor for one in selection.devices if one.path.startswith("/dev/nvidia-caps/")]
    uuids = {(one.minor, one.gi, one.ci): one.uuid for one in resolution.identities if one.gi >= 0}
    out = []
    for gpu in selection.gpus:
        for gi, instance in sorted(gpu.instances.items()):
            for ci, compute in sorted(instance.computes.items()):
                if instance.access is not None and compute.minor in given:
                    minors = [instance.access.minor, compute.minor]
                    out.append([gpu.uuid, gi, ci, uuids.get((gpu.minor, gi, ci), ""), minors])
    return out


def _sweep(directory: str) -> None:
    """Take away the records of containers that are gone: a few at each create, another few each time."""
    names = _names(directory)
    start = time.monotonic_ns() // 1000
    for n in range(min(_SWEPT, len(names))):
        name = names[(start + n) % len(names)]
        found = _read(directory, name)
        if found is None or _is_gone(found):
            try:
                os.unlink(f"{directory}/{name}")
            except OSError:
                pass  # another create was faster


def _names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.endswith(".tmp")]
    except OSError:
        return []  # none was kept yet


def _read(directory: str, name: str) -> "dict[str, Any] | None":
    data = state.read(directory, name)
    if data is None:
        return None
    try:
        found = loads(decode(data))
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def _is_gone(found: "dict[str, Any]") -> bool:
    try:
        os.stat(found["bundle"])
    except OSError:
        return True
    return False
