"""What only NVML knows: the UUIDs and indices of MIG devices. Asked at each create, in a bounded child.

Never kept: a mapping that has gone stale could hand one tenant another's device.
"""

import posix as os

from gpushim import linux
from gpushim.errors import InvalidNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"

# Where it stands below a driver's root; for the root / itself the loader is asked.
DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
)

# nvml.h, nvmlReturn_t: those that a node's owner can do something about.
_CODES = {
    4: "insufficient permissions",
    9: "the driver is not loaded",
    15: "a GPU has fallen off the bus",
    18: "the library is of another version than the driver: reboot, or reload the driver",
    999: "unknown error",
}


class NvmlDevice:
    """A GPU (mig, gi and ci are -1) or a MIG device, as NVML has it; *error* is 0 or an nvmlReturn_t.

    `arch` is 10 times a GPU's CUDA compute capability, `brand` its nvmlBrandType_t; -1 where NVML does not
    tell.
    """

    __slots__ = ("arch", "brand", "ci", "error", "gi", "gpu", "mig", "minor", "uuid")

    def __init__(self, numbers: list[int], uuid: str) -> None:
        self.gpu, self.minor, self.mig, self.gi, self.ci, self.error, self.arch, self.brand = numbers
        self.uuid = uuid


def read_identities(settings: "dict[str, Any]") -> list[NvmlDevice]:
    """Every device that NVML knows; InvalidNode when it does not answer within `gpushim.driver-timeout`."""
    library = find_library(settings["gpushim.roots.driver"])
    timeout = settings["gpushim.driver-timeout"]
    try:
        stage, code, rows = linux.nvml(library, timeout)
    except TimeoutError as problem:
        raise InvalidNode(
            "GS0407",
            f"NVML: no answer in {timeout:g} s",
            hint="a GPU or the driver hangs: see dmesg; GPUs asked for by index or UUID do not need NVML",
        ) from problem
    except (ChildProcessError, OSError) as problem:
        raise InvalidNode("GS0408", f"NVML: {library} crashed or answered nonsense") from problem
    if stage:
        raise InvalidNode("GS0409", f"NVML: {_told(stage, code, library)}")
    return [NvmlDevice(numbers, _uuid(text)) for numbers, text in rows]


def find_library(root: str) -> str:
    """The path of NVML below *root*, or its name for the loader where that is / or nothing is found."""
    if root.rstrip("/"):
        for directory in DIRECTORIES:
            path = f"{root.rstrip('/')}{directory}/{LIBRARY}"
            try:
                os.stat(path)
            except OSError:
                continue
            return path
        return f"{root.rstrip('/')}/usr/lib/{LIBRARY}"
    return LIBRARY


def words(code: int) -> str:
    """What an nvmlReturn_t says."""
    return _CODES.get(code, f"NVML error {code}")


def _told(stage: int, code: int, library: str) -> str:
    if stage == linux.NVML_LOAD:
        return f"{library} cannot be loaded"
    if stage == linux.NVML_SYMBOL:
        return f"{library} is too old to know MIG"
    return f"{library}: {words(code)}"


def _uuid(text: bytes) -> str:
    """*text* where it can be a UUID; what is not printable ASCII is none."""
    try:
        found = text.decode("ascii")
    except UnicodeDecodeError:
        return ""
    return found if found.isprintable() else ""
