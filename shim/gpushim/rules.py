"""linux.resources.devices: what a list of device-cgroup rules allows. Pure.

Source: OCI runtime-spec, config-linux.md, "Allowed Device list": rules are applied in the order listed; a
type, number or access that is missing stands for any.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANY = (None, "", -1)


def allows(
    rules: "list[dict[str, Any]]", major: int, minor: "int | None", access: str, *, default: bool
) -> bool:
    """Whether *rules* let all of *access* ("r", "rw", …) to the character device *major*:*minor* through.

    *minor* None asks for every minor at once. *default* is what the runtime does where no rule speaks.
    """
    granted = dict.fromkeys(access, default)
    for rule in rules:
        if not _covers(rule, major, minor):
            continue
        for letter in access:
            if letter in (rule.get("access") or "rwm"):
                granted[letter] = bool(rule.get("allow"))
    return all(granted.values())


def _covers(rule: "dict[str, Any]", major: int, minor: "int | None") -> bool:
    if rule.get("type") not in ("a", "c", "u", *ANY):
        return False
    if rule.get("major") not in (major, *ANY):
        return False
    if minor is None and rule.get("minor") not in ANY:
        # A rule on single minors widens nothing for all of them, and takes away from them when it denies.
        return not rule.get("allow")
    return minor is None or rule.get("minor") in (minor, *ANY)
