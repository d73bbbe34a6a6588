"""The shim: edit the bundle that an engine is about to create, then become the low-level runtime."""

import posix as os
import sys
import time

from gpushim import argv, bundle, settings
from gpushim.errors import ShimError, in_words
from gpushim.resolution import Resolution, audit, resolve, settings_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_EX_CONFIG = 78  # sysexits.h: the launcher tells it from an interpreter that does not work


def main(args: list[str]) -> "NoReturn":
    """`compile`, or `shim HANDLER RUNTIME IGNORED-SIGNALS` and the engine's own arguments (launcher.c)."""
    if args[0] == "compile":
        sys.exit(_compile())
    _, handler, runtime, ignored, *rest = args
    call = argv.Call()
    try:
        call = argv.parse(rest, runtime)
        if call.command in argv.MAKERS:
            prepare(call, handler, runtime)
    except (ShimError, OSError, MemoryError) as problem:
        from gpushim import log

        log.report(in_words(problem), call)
        sys.exit(1)
    _restore_signals(int(ignored))
    os.execv(runtime, [runtime, *rest])


def prepare(call: "argv.Call", handler: str, runtime: str) -> None:
    """Edit the bundle of *call* on disk, if its container asks for anything."""
    started = time.monotonic()
    found = bundle.open_bundle(call.bundle, call.config)
    effective = settings_for(found.config, os.environ)
    if effective is None:
        return
    resolution, state_dir = Resolution(), settings.state_dir(os.environ)
    try:
        resolve(found.config, effective, runtime, state_dir, resolution, handler=handler)
    finally:
        audit(call.command, call.container_id, resolution)
    if call.systemd_cgroup and resolution.selection is not None:
        _link(resolution, effective, runtime, state_dir)
    if resolution.work is not None:
        from gpushim import rootfs

        # Before config.json: what fails here leaves that as it was.
        resolution.warnings += rootfs.prepare(found.config, call.bundle, resolution.work)
    if resolution.edits:
        from gpushim import edits

        edits.apply(found.config, resolution.edits)
        bundle.write(found)
    if resolution.selection is not None:
        from gpushim import record

        record.keep(state_dir, call.container_id, call.bundle, resolution)
    if effective["gpushim.log"]:
        from gpushim import log

        took = f"{(time.monotonic() - started) * 1000:.1f} ms"
        text = f"{call.command} {call.container_id} {took}: {resolution.describe()}"
        log.debug(effective["gpushim.log"], text)


def _link(resolution: Resolution, effective: "dict[str, Any]", runtime: str, state_dir: str) -> None:
    from gpushim import dev_char

    assert resolution.selection is not None
    if dev_char.wanted(effective["gpushim.dev-char"], runtime, state_dir):
        root = effective["gpushim.roots.dev"].rstrip("/")
        resolution.warnings += dev_char.link(root, resolution.selection.devices)


def _compile() -> int:
    try:
        return 0 if settings.refresh(os.environ) else _EX_CONFIG
    except (ShimError, OSError) as problem:
        os.write(2, f"gpushim: {in_words(problem)}\n".encode("utf-8", "backslashreplace"))
        return _EX_CONFIG


def _restore_signals(ignored: int) -> None:
    """Python ignores SIGPIPE and SIGXFSZ; the container must not, unless the engine did."""
    import _signal  # signal itself imports enum

    for bit, number in ((1, _signal.SIGPIPE), (2, _signal.SIGXFSZ)):
        if not ignored & bit:
            _signal.signal(number, _signal.SIG_DFL)
