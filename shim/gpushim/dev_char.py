"""Links in /dev/char for nodes that are injected: the one thing this program writes into the host's /dev.

runc 1.1.3 to 1.1.6 leave a rule out of the systemd unit's DeviceAllow where neither /dev/char/M:m nor
/sys/dev/char/M:m resolves, and NVIDIA's driver registers nothing in sysfs: the container loses its GPU at the
next daemon-reload (runc issue 3708). systemd before 240 looks at the link itself.
"""

import posix as os

from gpushim import state
from gpushim.argv import is_crun
from gpushim.json_text import decode, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.selection import Device

CACHE = "runtime.json"
_SYSTEMD = ("/usr/lib/systemd", "/lib/systemd")


def wanted(setting: str, runtime: str, state_dir: str) -> bool:
    """Whether the low-level *runtime* needs links under systemd's cgroups; *setting* is gpushim.dev-char."""
    if setting != "auto":
        return setting == "always"
    return _faulty_runc(runtime, state_dir) or 0 < _systemd_version() < 240


def link(dev: str, devices: "list[Device]") -> list[str]:
    """Make the links that are missing below *dev*/dev/char; what could not be made, as warnings.

    A node that the host lacks gets none: a link that leads nowhere helps nobody.
    """
    warnings = []
    for device in devices:
        if device.host != (device.major, device.minor):
            continue
        path = f"{dev}/dev/char/{device.major}:{device.minor}"
        try:
            os.symlink(".." + device.path.removeprefix("/dev"), path)
        except FileExistsError:
            pass
        except OSError as problem:
            warnings.append(
                f"{path}: {problem.strerror}: the container may lose {device.path} at a daemon-reload"
            )
    return warnings


def _faulty_runc(runtime: str, state_dir: str) -> bool:
    if is_crun(runtime):
        return False
    return (1, 1, 3) <= parse_version(_version(runtime, state_dir)) <= (1, 1, 6)


def parse_version(text: str) -> tuple[int, ...]:
    """(1, 1, 5) of `runc version 1.1.5+ds1`; empty where there is no such."""
    for word in text.split():
        parts = word.replace("+", ".").replace("-", ".").replace("~", ".").split(".")[:3]
        if len(parts) == 3 and all(part.isdigit() for part in parts):
            return tuple([int(part) for part in parts])
    return ()


def _version(runtime: str, state_dir: str) -> str:
    """What `--version` of *runtime* says, asked once for one file."""
    found = os.stat(runtime)
    which = [runtime, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
    data = state.read(state_dir, CACHE)
    if data is not None:
        try:
            kept: dict[str, Any] = loads(decode(data))
            if kept["which"] == which:
                return str(kept["version"])
        except (ValueError, KeyError, TypeError):
            pass
    version = _ask(runtime)
    state.keep(state_dir, CACHE, dumps({"which": which, "version": version}).encode())
    return version


def _ask(runtime: str) -> str:
    reads, writes = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, writes, 1), (os.POSIX_SPAWN_CLOSE, reads)]
        child = os.posix_spawn(runtime, [runtime, "--version"], os.environ, file_actions=actions)
    except OSError:
        os.close(writes)
        os.close(reads)
        return ""
    os.close(writes)
    out = os.read(reads, 256)
    os.close(reads)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass  # an engine that ignores SIGCHLD has it reaped already
    return decode(out).partition("\n")[0]


def _systemd_version() -> int:
    """Of the installed systemd, by the name of its own library; 0 where that tells nothing."""
    for directory in _SYSTEMD:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            number = name.removeprefix("libsystemd-shared-").partition(".")[0]
            if name.startswith("libsystemd-shared-") and number.isdigit():
                return int(number)
    return 0
