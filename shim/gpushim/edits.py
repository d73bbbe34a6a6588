"""The one mutator of an OCI config.

Rule 1: nothing outside this file changes a config. Rule 2: an edit holds only settled values; whatever can
fail has failed before the first one is applied. Rule 3: every edit carries its reason.

Source: OCI runtime-spec, config.md and config-linux.md.
"""

from gpushim.request import INJECTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class AddDevice:
    """A character device that the runtime makes in the container; *mode* is permission bits."""

    __slots__ = ("gid", "major", "minor", "mode", "path", "uid", "why")

    def __init__(self, path: str, major: int, minor: int, mode: int, uid: int, gid: int, why: str) -> None:
        self.path = path
        self.major = major
        self.minor = minor
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.why = why

    def describe(self) -> str:
        return f"node {self.path} {self.major}:{self.minor} mode {self.mode:04o}"

    def apply(self, config: "dict[str, Any]") -> None:
        _list(_object(config, "linux"), "devices").append(
            {
                "path": self.path,
                "type": "c",
                "major": self.major,
                "minor": self.minor,
                "fileMode": self.mode,
                "uid": self.uid,
                "gid": self.gid,
            }
        )


class AllowDevice:
    """A device-cgroup rule for *major*:*minor*, any minor where that is None; *access* of r, w, m."""

    __slots__ = ("access", "major", "minor", "why")

    def __init__(self, major: int, minor: "int | None", access: str, why: str) -> None:
        self.major = major
        self.minor = minor
        self.access = access
        self.why = why

    def describe(self) -> str:
        minor = "*" if self.minor is None else self.minor
        return f"rule allow c {self.major}:{minor} {self.access}"

    def apply(self, config: "dict[str, Any]") -> None:
        rule: dict[str, Any] = {"allow": True, "type": "c", "major": self.major}
        if self.minor is not None:
            rule["minor"] = self.minor
        rule["access"] = self.access
        _list(_object(_object(config, "linux"), "resources"), "devices").append(rule)


class AddMount:
    """A bind mount of *source*, a path of the host, at *destination*."""

    __slots__ = ("destination", "options", "source", "why")

    def __init__(self, source: str, destination: str, options: tuple[str, ...], why: str) -> None:
        self.source = source
        self.destination = destination
        self.options = options
        self.why = why

    def describe(self) -> str:
        return f"mount {self.source} at {self.destination} {','.join(self.options)}"

    def apply(self, config: "dict[str, Any]") -> None:
        _list(config, "mounts").append(
            {
                "destination": self.destination,
                "type": "bind",
                "source": self.source,
                "options": list(self.options),
            }
        )


class AddGroup:
    """A supplementary group of the container's process."""

    __slots__ = ("gid", "why")

    def __init__(self, gid: int, why: str) -> None:
        self.gid = gid
        self.why = why

    def describe(self) -> str:
        return f"group {self.gid}"

    def apply(self, config: "dict[str, Any]") -> None:
        _list(_object(_object(config, "process"), "user"), "additionalGids").append(self.gid)


class RemoveHook:
    """Take out every hook of *stage* whose path is *path*."""

    __slots__ = ("path", "stage", "why")

    def __init__(self, stage: str, path: str, why: str) -> None:
        self.stage = stage
        self.path = path
        self.why = why

    def describe(self) -> str:
        return f"without the {self.stage} hook {self.path}"

    def apply(self, config: "dict[str, Any]") -> None:
        hooks = _object(config, "hooks")
        hooks[self.stage] = [hook for hook in hooks[self.stage] if hook.get("path") != self.path]


class Annotate:
    """Set our annotation to *value*; None takes it out."""

    __slots__ = ("value", "why")

    def __init__(self, value: "str | None", why: str) -> None:
        self.value = value
        self.why = why

    def describe(self) -> str:
        return f"without {INJECTED}" if self.value is None else f"annotation {INJECTED} {self.value!r}"

    def apply(self, config: "dict[str, Any]") -> None:
        annotations = _object(config, "annotations")
        if self.value is None:
            annotations.pop(INJECTED, None)
        else:
            annotations[INJECTED] = self.value


if TYPE_CHECKING:
    Edit = AddDevice | AllowDevice | AddMount | AddGroup | RemoveHook | Annotate


def apply(config: "dict[str, Any]", edits: "list[Edit]") -> None:
    """Make *edits*, in order, in *config* itself."""
    for edit in edits:
        edit.apply(config)


def _object(tree: "dict[str, Any]", key: str) -> "dict[str, Any]":
    """The object at *key*, made where the key is missing or null."""
    value: dict[str, Any] | None = tree.get(key)
    if value is None:
        value = tree[key] = {}
    return value


def _list(tree: "dict[str, Any]", key: str) -> "list[Any]":
    """The array at *key*, made where the key is missing or null."""
    value: list[Any] | None = tree.get(key)
    if value is None:
        value = tree[key] = []
    return value
