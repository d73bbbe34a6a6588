"""Nodes and mounts into the mount namespace of a container that lives already.

Nodes are made on a tmpfs of the host's user namespace and moved in, so that they open in a user namespace
too; the container's own /dev is looked at by descriptor alone, and never through a link (cffi_src/live.c).
"""

import errno
import posix as os

from gpushim import linux
from gpushim.edits import AddDevice, AddMount
from gpushim.errors import Conflict, InvalidState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.edits import Edit
    from gpushim_hooks.container import Container, Inside

_DEADLINE = 10.0  # seconds: a container's file system may be one that never answers


def give(container: "Container | Inside", edits: "list[Edit]") -> list[str]:
    """Make the nodes and mounts of *edits* appear in *container*: all or none; what was left out and why."""
    wanted: list[AddDevice | AddMount] = [e for e in edits if isinstance(e, AddDevice | AddMount)]
    if not wanted:
        return []
    items = [_item(edit, container) for edit in wanted]
    paths = [item[0] for item in items]
    root_ids = container.ids(0, 0)
    container.check_alive()
    place = (container.ns, container.root, container.device, container.inode, *_host_dev(), *root_ids)
    given = linux.give(place, items, _DEADLINE)
    if given.error:
        raise _problem(container, given, paths)
    return [
        f"{path}: would land in the /dev of this host, so no node is made; the rule is"
        for path, error in zip(paths, given.errors, strict=True)
        if error == errno.EXDEV
    ]


def _item(
    edit: "AddDevice | AddMount", container: "Container | Inside"
) -> tuple[str, str, int, int, int, int, int, int]:
    if isinstance(edit, AddMount):
        flags = sum([linux.ATTRIBUTES.get(option, 0) for option in edit.options])
        return (edit.destination, edit.source, 0, 0, 0, 0, 0, flags)
    return (edit.path, "", edit.major, edit.minor, edit.mode, *container.ids(edit.uid, edit.gid), 0)


def _host_dev() -> tuple[int, int]:
    """Device and inode of the host's /dev; any inode (0) where it is a file system of its own."""
    dev = os.stat("/dev")
    return dev.st_dev, dev.st_ino if dev.st_dev == os.stat("/").st_dev else 0


def _problem(container: "Container | Inside", given: "linux.Given", paths: list[str]) -> Exception:
    if given.stage == linux.ROOT:
        return InvalidState(
            "GS0760", f"{container.root}: is not what process {container.pid} has there: nothing is given"
        )
    for path, error in zip(paths, given.errors, strict=True):
        if error == errno.EEXIST:
            return Conflict(
                "GS0761",
                f"{path}: the container has something else there: nothing is given",
                hint="the image, or a volume of it, brings a file of this name",
            )
        if error in (errno.ELOOP, errno.ENOTDIR):
            return Conflict(
                "GS0762", f"{path}: a link or file of the container is in the way: nothing is given"
            )
        if error and error != errno.EXDEV:
            return OSError(error, os.strerror(error), f"{path} in the container")
    names = {linux.PREPARE: "the nodes", linux.ENTER: "its mount namespace"}
    what = names.get(given.stage, "its root")
    return OSError(given.error, os.strerror(given.error), f"process {container.pid}: {what}")
