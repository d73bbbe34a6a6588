"""Device names: `N`, `GPU-<uuid>`, `G:M`, `MIG-<uuid>`, `MIG-GPU-<uuid>/<gi>/<ci>`. Pure.

Source: NVIDIA MIG User Guide, "CUDA Device Enumeration"; nvml.h, nvmlDeviceGetMigDeviceHandleByIndex for
`G:M`.
"""

from gpushim.errors import InvalidNode, UnknownDevice, shown
from gpushim.node import Gpu, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.identity import NvmlDevice

_LISTED = 40  # names that an error lists at most


def number(name: str) -> int:
    """The decimal *name*, -1 where it is none; leading zeros are read as nothing."""
    return int(name) if name.isdigit() and name.isascii() and len(name) < 8 else -1


def is_mig_index(name: str) -> bool:
    """Whether *name* has the form `G:M`."""
    gpu, colon, mig = name.partition(":")
    return colon != "" and number(gpu) >= 0 and number(mig) >= 0


class Names:
    """The names that mean something on one node, to a request that came by the variable *source*."""

    __slots__ = ("_identities", "_node", "_source")

    def __init__(self, source: str, node: Node, identities: "list[NvmlDevice]") -> None:
        self._source = source
        self._node = node
        self._identities = identities

    def resolve(self, name: str) -> "tuple[Gpu, tuple[int, int] | None]":
        """The GPU of *name*, and the (gi, ci) of the MIG device it is.

        UnknownDevice where the node has no such, InvalidNode where it is sick.
        """
        if name.startswith("MIG-GPU-"):
            return self._old_form(name)
        if name.startswith("MIG-") or is_mig_index(name):
            return self._by_nvml(name)
        index = number(name)
        for gpu in self._node.gpus:
            if gpu.index == index or (gpu.uuid and gpu.uuid.lower() == name.lower()):
                return self._healthy(gpu), None
        for device in self._identities:
            if device.mig == -1 and device.uuid.lower() == name.lower():
                return self._by_minor(device, name), None
        raise self._unknown(name)

    def _old_form(self, name: str) -> tuple[Gpu, tuple[int, int]]:
        uuid, _, rest = name[4:].partition("/")
        gi, _, ci = rest.partition("/")
        for gpu in self._node.gpus:
            if gpu.uuid.lower() == uuid.lower():
                return self._healthy(gpu), self._instance(gpu, number(gi), number(ci), name)
        raise self._unknown(name)

    def _by_nvml(self, name: str) -> tuple[Gpu, tuple[int, int]]:
        found = [device for device in self._identities if device.mig >= 0 and self._is(device, name)]
        if len(found) > 1:
            raise InvalidNode(
                "GS0410", f"{self._source}: NVML knows {len(found)} devices by the name {shown(name)}"
            )
        if not found:
            raise self._unknown(name)
        gpu = self._by_minor(found[0], name)
        return gpu, self._instance(gpu, found[0].gi, found[0].ci, name)

    def _is(self, device: "NvmlDevice", name: str) -> bool:
        if device.error:
            return False
        if not is_mig_index(name):
            return device.uuid.lower() == name.lower()
        index, _, mig = name.partition(":")
        if device.mig != number(mig):
            return False
        # Our index, by the minor: NVML's may differ where it cannot see a GPU.
        gpus = [gpu for gpu in self._node.gpus if gpu.index == number(index)]
        return bool(gpus) and not gpus[0].fault and gpus[0].minor == device.minor

    def _by_minor(self, device: "NvmlDevice", name: str) -> Gpu:
        for gpu in self._node.gpus:
            if gpu.minor == device.minor:
                return self._healthy(gpu)
        raise InvalidNode(
            "GS0411",
            f"{self._source}: {shown(name)}: NVML puts it on a GPU of which the kernel tells nothing",
        )

    def _instance(self, gpu: Gpu, gi: int, ci: int, name: str) -> tuple[int, int]:
        """A MIG device is whole: both its instances are in the kernel now."""
        instance = gpu.instances.get(gi)
        if instance is None or ci not in instance.computes:
            raise UnknownDevice(
                "GS0206",
                f"{self._source}: {shown(name)}: GPU {gpu.index} has no instance {gi} "
                f"with a compute instance {ci}",
                hint="it may just have been destroyed: gpushim node shows the instances",
            )
        return gi, ci

    def _healthy(self, gpu: Gpu) -> Gpu:
        if gpu.fault:
            raise InvalidNode(
                "GS0404",
                f"{self._source}: GPU {gpu.index} ({gpu.bus}): {gpu.fault}",
                hint="gpushim node shows the state of every GPU",
            )
        return gpu

    def _unknown(self, name: str) -> UnknownDevice:
        return UnknownDevice("GS0205", f"{self._source}: unknown device {shown(name)}", hint=self._known())

    def _known(self) -> str:
        if not self._node.gpus:
            return "this node has no GPU"
        names = [f"{gpu.index} ({gpu.fault or gpu.uuid or 'no UUID yet'})" for gpu in self._node.gpus]
        for device in self._identities:
            if device.mig >= 0 and not device.error:
                index = [gpu.index for gpu in self._node.gpus if gpu.minor == device.minor]
                names.append(f"{index[0] if index else '?'}:{device.mig} ({device.uuid})")
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return f"this node has {', '.join(names[:_LISTED])}{more}"
