"""Files read whole and replaced at once."""

import posix as os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import stat_result


def read(path: str, limit: int = 1 << 20) -> bytes:
    """The bytes of *path*, at most *limit*; OSError EFBIG beyond. For files of the kernel and of our own."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_fd(fd, path, limit)
    finally:
        os.close(fd)


def read_fd(fd: int, path: str, limit: int) -> bytes:
    """The bytes from the descriptor *fd* on; *path* is what an error names."""
    # The size is a hint: files of /proc have none.
    size = os.fstat(fd).st_size
    data = os.read(fd, (size if 0 < size <= limit else 65536) + 1)
    if 0 < size == len(data):
        return data
    parts = [data]
    while data:
        data = os.read(fd, 1 << 20)
        parts.append(data)
        if sum([len(part) for part in parts]) > limit:
            raise OSError(27, os.strerror(27), path)  # EFBIG
    return b"".join(parts)


def replace(path: str, data: bytes, mode: int, like: "stat_result | None" = None) -> None:
    """Put *data* at *path* by a new file and rename(2): a crash leaves the old file or the new one.

    *mode* and the owner of *like*. There is no fsync: what this program writes is of no use after the
    machine itself went down.
    """
    temp = f"{path}.{os.getpid()}.tmp"
    try:
        fd = _new(temp)
        try:
            if like is not None and (like.st_uid != os.geteuid() or like.st_gid != os.getegid()):
                os.fchown(fd, like.st_uid, like.st_gid)
            os.fchmod(fd, mode)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)
        os.rename(temp, path)
    except OSError as problem:
        _remove(temp)
        raise OSError(problem.errno, problem.strerror, path) from problem


def _new(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)  # of a process that had our pid and was killed here
        return os.open(path, flags, 0o600)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it was never made
