"""Who a process is to the kernel when it opens a file, and what a file's mode lets it do.

Source: credentials(7), capabilities(7), user_namespaces(7); fs/namei.c, generic_permission().
"""

import os
from pathlib import Path

_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2  # bits of linux/capability.h


class ProcessUser:
    """The ids (of this host) and capabilities of process *pid*; OSError where it is gone."""

    def __init__(self, pid: int) -> None:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        self.uid = int(fields["Uid"].split()[3])
        self.gid = int(fields["Gid"].split()[3])
        self.groups = {self.gid, *[int(word) for word in fields["Groups"].split()]}
        self.capabilities = int(fields["CapEff"], 16)
        self._uids = _ranges(Path(f"/proc/{pid}/uid_map"))
        self._gids = _ranges(Path(f"/proc/{pid}/gid_map"))

    def may(self, found: os.stat_result, letter: str) -> bool:
        """Whether the mode and owner of *found* let this process read (r) or write (w) it."""
        bit = 4 if letter == "r" else 2
        if found.st_uid == self.uid:
            bit <<= 6
        elif found.st_gid in self.groups:
            bit <<= 3
        if found.st_mode & bit:
            return True
        # Capabilities of a user namespace count for files whose owners it knows.
        if not (_in(self._uids, found.st_uid) and _in(self._gids, found.st_gid)):
            return False
        enough = [_DAC_OVERRIDE, _DAC_READ_SEARCH] if letter == "r" else [_DAC_OVERRIDE]
        return any(self.capabilities >> one & 1 for one in enough)

    def inside(self, found: os.stat_result) -> tuple[int | None, int | None]:
        """The owner and group of *found* as the container numbers them; None where it has no number."""
        return _inside(self._uids, found.st_uid), _inside(self._gids, found.st_gid)


def _ranges(path: Path) -> list[tuple[int, int, int]]:
    words = [int(word) for word in path.read_text().split()]
    return list(zip(words[::3], words[1::3], words[2::3], strict=True))


def _in(ranges: list[tuple[int, int, int]], outside: int) -> bool:
    return _inside(ranges, outside) is not None


def _inside(ranges: list[tuple[int, int, int]], outside: int) -> int | None:
    for first, base, count in ranges:
        if base <= outside < base + count:
            return first + outside - base
    return None
