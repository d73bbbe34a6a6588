"""Running containers, by the ids that runtimes and engines give them, out of the runtimes' own state."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpushim.errors import UnknownContainer

# Where runc and crun keep a directory for each container: by themselves, by containerd (k8s.io, moby, …), by
# Docker, by podman and CRI-O, and without root. An engine's other place is for --root.
ROOTS = (
    "/run/runc",
    "/run/crun",
    "/run/containerd/runc/*",
    "/run/docker/runtime-*/*",
    "/run/user/*/runc",
    "/run/user/*/crun",
)


class Running(NamedTuple):
    """A container that has a process."""

    id: str
    pid: int
    bundle: str  # empty where the runtime does not tell
    root: str  # of the runtime's state


def find(name: str, roots: tuple[str, ...] = ROOTS) -> Running:
    """The running container whose id is *name*, or begins so; UnknownContainer where it is not one."""
    found = [one for one in every(roots) if one.id.startswith(name)]
    exact = [one for one in found if one.id == name]
    if len(exact) == 1 or (not exact and len(found) == 1):
        return (exact or found)[0]
    if found:
        ids = ", ".join(sorted(f"{one.id} in {one.root}" for one in exact or found)[:8])
        raise UnknownContainer(
            "GS0810",
            f"{name!r}: is the beginning of several ids: {ids}",
            hint="write more of it, or --root with the directory of one",
        )
    raise UnknownContainer(
        "GS0811",
        f"{name!r}: no running container has this id, as far as runc and crun know",
        hint="ids are those of `docker ps`, `podman ps`, `crictl ps`, `ctr tasks ls`, `runc list`; "
        "--root names another directory of a runtime's state, --pid a process",
    )


def with_process(pid: int, roots: tuple[str, ...] = ROOTS) -> Running | None:
    """The container whose first process is *pid*."""
    return next((one for one in every(roots) if one.pid == pid), None)


def every(roots: tuple[str, ...] = ROOTS) -> Iterator[Running]:
    """Each running container that can be seen; what is hidden from this user or broken is left out."""
    for pattern in roots:
        base = Path("/")
        for root in sorted(base.glob(pattern.lstrip("/"))):
            try:
                directories = sorted(root.iterdir())
            except OSError:
                continue
            for directory in directories:
                found = _runc(directory) or _crun(directory)
                if found is not None:
                    yield found


def _runc(directory: Path) -> Running | None:
    """Of runc's state.json (libcontainer/container.go, BaseState; the bundle is a label)."""
    state = _load(directory / "state.json")
    if state is None:
        return None
    labels = state.get("config", {}).get("labels") or []
    bundle = next((label[7:] for label in labels if str(label).startswith("bundle=")), "")
    return _running(state.get("id"), state.get("init_process_pid"), bundle, directory)


def _crun(directory: Path) -> Running | None:
    """Of crun's status (src/libcrun/status.c)."""
    status = _load(directory / "status")
    return (
        None
        if status is None
        else _running(directory.name, status.get("pid"), status.get("bundle"), directory)
    )


def _running(id: Any, pid: Any, bundle: Any, directory: Path) -> Running | None:
    if not isinstance(id, str) or not isinstance(pid, int) or pid <= 0:
        return None
    if not Path(f"/proc/{pid}/root").is_symlink() and not os.path.lexists(f"/proc/{pid}/root"):
        return None
    return Running(id, pid, bundle if isinstance(bundle, str) else "", str(directory.parent))


def _load(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(4 << 20))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
