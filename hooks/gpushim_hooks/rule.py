"""What a device cgroup is asked, and what it is to allow. Pure.

A question is `(type, major, minor, access)`: type "c" or "b", access "m" (mknod) or one of "r", "w" and "rw",
since the kernel never asks for a node to be made and opened at once (security/device_cgroup.c).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    Question = tuple[str, int, int, str]

LAST_MINOR = (1 << 20) - 1  # include/linux/kdev_t.h, MINORBITS


class Rule:
    """Allow *access* (of "r", "w", "m") to the minors *first* to *last* of *major*."""

    __slots__ = ("access", "first", "last", "major", "type")

    def __init__(self, major: int, first: int, last: int, access: str, type: str = "c") -> None:
        self.type = type
        self.major = major
        self.first = first
        self.last = last
        self.access = "".join([letter for letter in "rwm" if letter in access])

    def describe(self) -> str:
        minors = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        if self.first == 0 and self.last >= LAST_MINOR:
            minors = "*"
        return f"{self.type} {self.major}:{minors} {self.access}"

    def asked(self) -> list[str]:
        """Every access that the kernel may ask for under this rule."""
        opens = [access for access in ("r", "w", "rw") if set(access) <= set(self.access)]
        return [*opens, "m"] if "m" in self.access else opens

    def minors(self) -> "list[int | None]":
        """Each minor by itself, for what knows no ranges; None once for all that there can be."""
        if self.first == 0 and self.last >= LAST_MINOR:
            return [None]
        return list(range(self.first, self.last + 1))


def merged(rules: list[Rule]) -> list[Rule]:
    """As few rules as say the same: neighbours of one type, major and access become one range."""
    out: list[Rule] = []
    for rule in sorted(rules, key=_place):
        last = out[-1] if out else None
        if last is not None and _place(last)[:3] == _place(rule)[:3] and rule.first <= last.last + 1:
            out[-1] = Rule(last.major, last.first, max(last.last, rule.last), last.access, last.type)
        else:
            out.append(rule)
    return out


def _place(rule: Rule) -> tuple[str, int, str, int]:
    return rule.type, rule.major, rule.access, rule.first
