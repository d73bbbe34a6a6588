"""The hook inside a user namespace: host nodes bound into the root, where nobody may make a node or a rule.

Source: OCI runtime-spec, config.md, "createContainer Hooks": the container's namespaces, and the host's
paths, since pivot_root(2) is not done yet. Rootless runtimes start no other hook that could mount anything.
"""

import errno
import posix as os

from gpushim.edits import AddDevice, AllowDevice
from gpushim.errors import InvalidState
from gpushim.resolution import Resolution, resolve
from gpushim_hooks import live
from gpushim_hooks.container import Inside, root_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim_hooks.state import State


def create_container(
    state: "State", config: "dict[str, Any]", settings: "dict[str, Any]", state_dir: str
) -> list[str]:
    """Bind what *config* asks for; what the administrator should know, or cannot be given."""
    resolution = resolve(config, settings, "", state_dir, Resolution())
    if any(isinstance(edit, AddDevice) for edit in resolution.edits):
        raise InvalidState(
            "GS0767",
            "a createContainer hook can give nothing to a container without a user namespace",
            hint="start `gpushim-hook create-runtime` as a hook of createRuntime",
        )
    if resolution.edits:
        if resolution.work is not None:
            from gpushim import rootfs

            resolution.warnings += rootfs.prepare({"root": config.get("root")}, state.bundle, resolution.work)
        resolution.warnings += live.give(Inside(root_of(config, state.bundle)), resolution.edits)
        _check_cgroup(resolution)
    return resolution.warnings


def _check_cgroup(resolution: Resolution) -> None:
    """InvalidState where a device cgroup is in force, whose rules nobody can write from in here."""
    if not any(isinstance(edit, AllowDevice) for edit in resolution.edits):
        return
    assert resolution.selection is not None and resolution.node is not None
    device = resolution.selection.devices[0]  # /dev/nvidiactl: to open it touches no GPU
    try:
        path = resolution.node.roots.dev + device.path
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError as problem:
        if problem.errno != errno.EPERM:  # EACCES is of its mode, and the plan has told
            return
        raise InvalidState(
            "GS0768",
            f"{device.path}: the container's device cgroup denies it, and nobody inside can write its rules",
            hint="where root runs the engine: `gpushim-hook create-runtime` as a hook of createRuntime",
        ) from problem
    except OSError:
        pass  # the driver's own answer: the cgroup let it through
