"""The live outlet as a hook: what the shim would have written into config.json, given to the container.

Source: OCI runtime-spec, config.md, "createRuntime Hooks": the mount namespace is there, pivot_root(2) is not
done yet; runc and crun have made the cgroup by then.
"""

import posix as os

from gpushim import log, record
from gpushim.edits import AddGroup, AllowDevice
from gpushim.errors import InvalidState
from gpushim.resolution import Resolution, audit, in_user_namespace, resolve
from gpushim_hooks import access, live
from gpushim_hooks.container import open_container
from gpushim_hooks.rule import LAST_MINOR, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim_hooks.state import State


def create_runtime(
    state: "State", config: "dict[str, Any]", settings: "dict[str, Any]", state_dir: str
) -> list[str]:
    """Give the container of *state* what *config* asks for; what the administrator should know.

    A second run (`runc restore` runs these hooks again) changes nothing.
    """
    resolution = Resolution()
    try:
        resolve(config, settings, "", state_dir, resolution, live=True)
    finally:
        audit("create-runtime", state.id, resolution)
    if resolution.selection is not None:
        _give(state, config, resolution)
        record.keep(state_dir, state.id, state.bundle, resolution)
    if settings["gpushim.log"]:
        log.debug(settings["gpushim.log"], f"create-runtime {state.id}: {resolution.describe()}")
    return resolution.warnings


def _give(state: "State", config: "dict[str, Any]", resolution: Resolution) -> None:
    if os.geteuid() != 0 or in_user_namespace():
        raise InvalidState(
            "GS0770",
            "only root of this host can give a living container devices and rules",
            hint="without root: `gpushim-hook create-container` as a hook of createContainer",
        )
    container = open_container(state.pid, config, state.bundle)
    rules = [_rule(edit) for edit in resolution.edits if isinstance(edit, AllowDevice)]
    resolution.warnings += access.allow(container.pid, rules)
    if resolution.work is not None:
        from gpushim import rootfs

        # The root that the runtime has mounted in the container's namespace is the one that is seen here.
        resolution.warnings += rootfs.prepare(config, state.bundle, resolution.work)
    resolution.warnings += live.give(container, resolution.edits)
    resolution.warnings += [
        f"{edit.why}: the process has its groups already: {edit.describe()} is for the shim to give"
        for edit in resolution.edits
        if isinstance(edit, AddGroup)
    ]


def _rule(edit: AllowDevice) -> Rule:
    if edit.minor is None:
        return Rule(edit.major, 0, LAST_MINOR, edit.access)
    return Rule(edit.major, edit.minor, edit.minor, edit.access)
