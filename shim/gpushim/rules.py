"""linux.resources.devices: what a list of device-cgroup rules allows. Pure.

Source: OCI runtime-spec, config-linux.md, "Allowed Device list": rules are applied in the order listed; a
type, number or access that is missing stands for any.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ANY = (None, "", -1)


class Rules:
    """A list of rules to be asked about many devices: those on one device are found without a walk."""

    __slots__ = ("_all", "_default", "_one", "_wide")

    def __init__(self, rules: "list[dict[str, Any]]", *, default: bool) -> None:
        """*default* is what the runtime does where no rule speaks."""
        self._default = default
        self._all: list[tuple[int, dict[str, Any]]] = []
        self._one: dict[tuple[Any, Any], list[tuple[int, dict[str, Any]]]] = {}
        self._wide: list[tuple[int, dict[str, Any]]] = []
        for rule in rules:
            self.add(rule)

    def add(self, rule: "dict[str, Any]") -> None:
        """Put *rule* behind the last."""
        entry = (len(self._all), rule)
        self._all.append(entry)
        numbers = (rule.get("major"), rule.get("minor"))
        if rule.get("type") == "a" or numbers[0] in _ANY or numbers[1] in _ANY:
            self._wide.append(entry)
        else:
            self._one.setdefault(numbers, []).append(entry)

    def allow(self, major: int, minor: "int | None", access: str) -> bool:
        """Whether all of *access* ("r", "rw", …) to the character device *major*:*minor* goes through.

        *minor* None asks for every minor at once.
        """
        granted = dict.fromkeys(access, self._default)
        if minor is None:
            entries = self._all
        else:
            own = self._one.get((major, minor))
            entries = sorted(self._wide + own, key=_place) if own else self._wide
        for _, rule in entries:
            if not _covers(rule, major, minor):
                continue
            for letter in access:
                if letter in (rule.get("access") or "rwm"):
                    granted[letter] = bool(rule.get("allow"))
        return all(granted.values())


def _place(entry: "tuple[int, dict[str, Any]]") -> int:
    return entry[0]


def _covers(rule: "dict[str, Any]", major: int, minor: "int | None") -> bool:
    if rule.get("type") not in ("a", "c", "u", *_ANY):
        return False
    if rule.get("type") == "a":
        return True
    if rule.get("major") not in (major, *_ANY):
        return False
    if minor is None and rule.get("minor") not in _ANY:
        # A rule on one minor widens nothing for all of them, and takes away from them when it denies.
        return not rule.get("allow")
    return minor is None or rule.get("minor") in (minor, *_ANY)
