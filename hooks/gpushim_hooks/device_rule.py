"""One rule of a device cgroup, whichever of the two kinds of cgroup it goes to."""


class DeviceRule:
    """Access (of r, w, m) to the character devices of *major*, the minors *first* to *last*; None is any."""

    __slots__ = ("access", "first", "last", "major")

    def __init__(self, major: int, first: "int | None", last: "int | None", access: str) -> None:
        self.major = major
        self.first = first
        self.last = last
        self.access = access

    def minors(self) -> "list[int | None]":
        """Each minor by itself, for what knows no ranges; None once for all of them."""
        if self.first is None or self.last is None:
            return [None]
        return list(range(self.first, self.last + 1))
