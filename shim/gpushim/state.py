"""What is kept between two runs: files in a directory that nobody but its own user can write.

All of it may be deleted at any time. Whatever another user could have written is not read, and nothing is
written where another could be in the way.
"""

import posix as os

from gpushim import files

_OTHERS_WRITE = 0o022


def _opened(directory: str) -> int:
    """A descriptor of *directory*; OSError EPERM when it is not our user's alone."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stat = os.fstat(fd)
    if stat.st_uid != os.geteuid() or stat.st_mode & _OTHERS_WRITE:
        os.close(fd)
        raise PermissionError(1, "others can write it", directory)
    return fd


def read(directory: str, name: str) -> bytes | None:
    """The file *name* of *directory*; None when it is not there or not to be trusted."""
    try:
        parent = _opened(directory)
    except OSError:
        return None
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            stat = os.fstat(fd)
            if stat.st_mode & 0o170000 != 0o100000:
                return None
            if stat.st_uid != os.geteuid() or stat.st_mode & _OTHERS_WRITE:
                return None
            return files.read_fd(fd, name, 16 << 20)
        finally:
            os.close(fd)
    except OSError:
        return None
    finally:
        os.close(parent)


def keep(directory: str, name: str, data: bytes) -> bool:
    """Write *data* as the file *name* of *directory*, made if it can be; whether that went well."""
    try:
        try:
            parent = _opened(directory)
        except FileNotFoundError:
            make(directory)
            parent = _opened(directory)
        os.close(parent)
        files.replace(f"{directory}/{name}", data, 0o600)
    except OSError:
        return False  # a node that cannot remember is slower, not broken
    return True


def name_of(text: str) -> str:
    """A file name for *text*: FNV-1a of 64 bits, as the launcher has it (cffi_src/compiled.c)."""
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def make(directory: str) -> None:
    """Make *directory* and those above it, for our own user alone; OSError where that cannot be."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        parent = directory.rpartition("/")[0]
        if not parent:
            raise
        make(parent)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass
