"""Where a create tells what it did: stderr, the file of the runtime's --log, and the debug log.

Engines show the user what stands in the file of --log (containerd's runc shim and Docker read its last error
line), so a message goes there in the runtime's own form: logrus, as text or as JSON.
"""

import posix as os
import time

from gpushim import state
from gpushim.json_text import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.argv import Call


def printable(text: str) -> str:
    """*text* with its control characters spelt out: what an image wrote does not steer a terminal."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text])


def report(text: str, call: "Call") -> None:
    """Say *text*, an error, to whoever started us."""
    message = f"gpushim: {printable(text)}"
    try:
        os.write(2, _bytes(message + "\n"))
    except OSError:
        pass  # an engine that closed it reads the log
    if not call.log:
        return
    if call.log_format == "json":
        line = dumps({"level": "error", "msg": message, "time": _now()})
    else:
        line = f"time={dumps(_now())} level=error msg={dumps(message)}"
    append(call.log, line)


def audit(text: str) -> None:
    """One line *text* to the system's log, whether or not a debug log is on."""
    import syslog

    syslog.openlog("gpushim", syslog.LOG_PID, syslog.LOG_AUTH)
    syslog.syslog(syslog.LOG_NOTICE, printable(text))


def debug(target: str, text: str) -> None:
    """One line *text* to the debug log: a file, or `syslog`."""
    if target == "syslog":
        import syslog  # loads the C library's side of it: only where it is asked for

        syslog.openlog("gpushim", syslog.LOG_PID, syslog.LOG_DAEMON)
        syslog.syslog(syslog.LOG_INFO, text)
    elif target:
        append(target, f"{_now()} {text}")


def line(path: str, text: str) -> None:
    """One line *text* to the hook's own log, which starts anew once it has a megabyte."""
    try:
        if os.stat(path).st_size > 1 << 20:
            os.rename(path, f"{path}.1")
    except OSError:  # there is none yet, nor may its directory be
        try:
            state.make(path.rpartition("/")[0])
        except OSError:
            pass
    append(path, f"{_now()} {text}")


def append(path: str, line: str) -> None:
    """One *line* to the end of *path*; a log that cannot be written is not worth a container."""
    try:
        # O_NONBLOCK: nobody reads a FIFO that stands there.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o644)
    except OSError:
        return
    try:
        os.write(fd, _bytes(line + "\n"))
    except OSError:
        pass
    finally:
        os.close(fd)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
