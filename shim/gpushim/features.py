"""What stands beside the GPUs and other drivers make: GPUDirect Storage, RDMA, GDRCopy, NVSwitch.

Source: the NVIDIA Container Toolkit, internal/modifier/gated.go and pkg/nvcdi. The kernel numbers these as it
likes: the host's own nodes are what there is.
"""

import posix as os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Feature → directory and name of its nodes, which may be the beginning of a name: nvidia-nvswitchctl is one.
_NODES: "dict[str, tuple[tuple[str, str, bool], ...]]" = {
    "gds": (("/dev", "nvidia-fs", True),),
    "mofed": (("/dev/infiniband", "uverbs", True), ("/dev/infiniband", "rdma_cm", False)),
    "gdrcopy": (("/dev", "gdrdrv", False),),
    "nvswitch": (("/dev", "nvidia-nvswitch", True),),
}
# What GPUDirect Storage reads beside its nodes.
_FILES: "dict[str, tuple[str, ...]]" = {"gds": ("/etc/cufile.json", "/run/udev")}


class Feature:
    """What this host has of one: `nodes` are (path, major, minor), `files` (host's path, container's)."""

    __slots__ = ("files", "nodes")

    def __init__(self) -> None:
        self.nodes: list[tuple[str, int, int]] = []
        self.files: list[tuple[str, str]] = []


def read_features(names: "Iterable[str]", dev: str, root: str) -> dict[str, Feature]:
    """Each of *names* as this host has it: nodes below *dev*, which holds its /dev, files below *root*."""
    out = {}
    for name in names:
        feature = out[name] = Feature()
        for directory, node, beginning in _NODES[name]:
            feature.nodes += _nodes(dev, directory, node, beginning)
        for path in _FILES.get(name, ()) if feature.nodes else ():
            if _is_there(root + path):
                feature.files.append((root + path, path))
    return out


def _nodes(dev: str, directory: str, name: str, beginning: bool) -> "list[tuple[str, int, int]]":
    try:
        names = sorted(os.listdir(dev + directory))
    except OSError:
        return []  # the module is not loaded
    wanted = [one for one in names if one == name or (beginning and one.startswith(name))]
    found = [(f"{directory}/{one}", os.lstat(f"{dev}{directory}/{one}")) for one in wanted]
    return [
        (path, os.major(stat.st_rdev), os.minor(stat.st_rdev))
        for path, stat in found
        if stat.st_mode & 0o170000 == 0o020000
    ]


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except OSError:
        return False
    return True
