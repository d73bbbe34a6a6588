"""The nodes that tests and demonstrations know by name."""

from typing import NamedTuple


class Gpu(NamedTuple):
    """One GPU: instances are {GPU instance id: compute instance ids}; state says what is odd about it."""

    minor: int
    bus: str
    model: str = "NVIDIA H100 80GB HBM3"
    instances: "dict[int, tuple[int, ...]]" = {}  # noqa: RUF012 - a tuple's default, never changed
    state: str = "healthy"  # excluded, no-uuid, off-the-bus, hangs


class Node(NamedTuple):
    """A machine: *driver* empty is none loaded, *frontend* the device names of before the 545 series."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = "580.126.09"
    caps_major: int = 237
    uvm_major: int = 510
    imex_major: int = 234
    capabilities: bool = True
    frontend: bool = False


def gpus(count: int, instances: "dict[int, tuple[int, ...]] | None" = None) -> tuple[Gpu, ...]:
    """*count* GPUs in a row, each with *instances*."""
    return tuple(Gpu(n, f"0000:{0x10 + n:02x}:00.0", instances=instances or {}) for n in range(count))


# Seven instances of profile 1g: ids 7 to 13, one compute instance each.
SEVEN: dict[int, tuple[int, ...]] = dict.fromkeys(range(7, 14), (0,))

NODES = {
    "seed": Node((Gpu(0, "0000:18:00.0", "NVIDIA H100 NVL", SEVEN),)),
    "no-driver": Node(driver=""),
    "no-gpu": Node(),
    "one-gpu": Node(gpus(1)),
    "eight-gpus": Node(gpus(8)),
    "eight-by-seven": Node(gpus(8, SEVEN)),
    "sixteen-gpus": Node(gpus(16, SEVEN)),
    "eight-h100-mixed": Node(
        tuple(
            gpu._replace(instances={1: (0, 1, 2), 5: (0,)} if gpu.minor == 3 else SEVEN if gpu.minor > 5 else {})
            for gpu in gpus(8)
        )
    ),
    "gpu-off-the-bus": Node((*gpus(2), Gpu(2, "0000:12:00.0", state="off-the-bus"), Gpu(3, "0000:13:00.0"))),
    "gpu-hangs": Node((*gpus(2), Gpu(2, "0000:12:00.0", state="hangs"), Gpu(3, "0000:13:00.0"))),
    "mig-no-instance": Node(gpus(2)),
    "index-is-not-minor": Node((Gpu(3, "0000:10:00.0"), Gpu(0, "0000:11:00.0"), Gpu(5, "0000:12:00.0", instances={7: (0,)}))),
    "gpu-excluded": Node((Gpu(0, "0000:10:00.0"), Gpu(1, "0000:11:00.0", state="excluded"), Gpu(2, "0000:12:00.0"))),
    "uuid-missing": Node((Gpu(0, "0000:10:00.0"), Gpu(1, "0000:11:00.0", state="no-uuid"))),
    "caps-235": Node(gpus(1, SEVEN), caps_major=235),
    "caps-236": Node(gpus(1, SEVEN), caps_major=236),
    "caps-508": Node(gpus(1, SEVEN), caps_major=508),
    "old-devices": Node(gpus(2), driver="450.51.06", capabilities=False, frontend=True),
    "eight-digit-domain": Node((Gpu(0, "00010000:00:00.0"), Gpu(1, "0000:65:00.0"))),
    "no-uvm": Node(gpus(1), uvm_major=0),
}  # fmt: skip
