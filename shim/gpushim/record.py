"""What a container was given, for as long as it is there: our own word, which nobody but root can write.

Kept by container id and bundle in the state directory. The annotation in config.json is for people; this is
what `gpushim devices` compares with, and `gpushim repair` gives back.
"""

import posix as os
import time

from gpushim import state
from gpushim.json_text import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.resolution import Resolution

SCHEMA = 1
DIRECTORY = "containers"
_SWEEPERS = 8  # one create in so many looks for the records of containers that are gone


def keep(state_dir: str, container_id: str, bundle: str, resolution: "Resolution") -> bool:
    """Write down what *resolution* gave to the container; whether that went well."""
    directory = f"{state_dir}/{DIRECTORY}"
    if os.getpid() % _SWEEPERS == 0:
        from gpushim import records

        records.sweep(directory)
    if not bundle.startswith("/"):
        bundle = os.getcwd() if bundle == "." else f"{os.getcwd()}/{bundle}"
    data = dumps(_record(container_id, bundle, resolution)).encode("ascii")
    return state.keep(directory, state.name_of(f"{container_id}\0{bundle}"), data)


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
