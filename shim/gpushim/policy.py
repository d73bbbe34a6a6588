"""Whether a container may have what it asks for: the administrator's choice, never the image's.

Pure. Each kind of request is `allow`ed, `deny`ed, or depends on `sys-admin`: CAP_SYS_ADMIN in the bounding
set outside of user namespaces. Inside one the driver does not honour it: it asks capable(), which is about
the first user namespace (src/nvidia/arch/nvalloc/unix/src/os.c).
"""

from gpushim.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.request import Request

KINDS = (
    "devices-env",
    "devices-annotation",
    "devices-mount",
    "mig-monitor",
    "mig-config",
    "management",
    "imex",
    "nvswitch",
    "features",
)


# Whatever grants or refuses one of these is told to the system's log.
AUDITED = ("mig-config", "management", "nvswitch", "imex")

# The annotations that an engine itself sets last, whatever a pod's or an image's say, so that a rule may
# trust them. containerd 1.5 to 2.2: pkg/cri/server/container_create_linux.go and
# internal/cri/server/container_create.go append annotations.DefaultCRIAnnotations behind the annotations that
# pass through from pod and container; customopts. WithAnnotation overwrites. CRI-O 1.20 to 1.34:
# internal/factory/container/container.go, SpecAddAnnotations copies the container's labels last of all, and
# these are the kubelet's (pkg/kubelet/kuberuntime/labels.go).
ENGINE_ANNOTATIONS = {
    "containerd": (
        "io.kubernetes.cri.container-name",
        "io.kubernetes.cri.container-type",
        "io.kubernetes.cri.sandbox-id",
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.cri.sandbox-namespace",
    ),
    "crio": (
        "io.kubernetes.container.name",
        "io.kubernetes.pod.name",
        "io.kubernetes.pod.namespace",
        "io.kubernetes.pod.uid",
    ),
}


class Verdict:
    """Whether one kind of request is granted, which setting decided, and what is missing if it is not."""

    __slots__ = ("granted", "kind", "missing", "on_refusal", "setting", "variable")

    def __init__(self, kind: str, variable: str, setting: str, missing: str, on_refusal: str) -> None:
        self.kind = kind
        self.variable = variable
        self.setting = setting
        self.missing = missing
        self.granted = not missing
        self.on_refusal = on_refusal

    def describe(self) -> str:
        """One line for explain and the debug log."""
        if self.granted:
            return f"{self.variable}: granted by {self.setting}"
        return f"{self.variable}: refused: {self.missing} ({self.setting})"

    def raise_refusal(self) -> None:
        """Refused, if this verdict is one that fails the container."""
        if self.granted or self.on_refusal != "fail":
            return
        raise Refused(
            "GS0301",
            f"{self.variable}: refused: {self.missing}",
            hint=f'{self.setting} decides; gpushim.policy.{self.kind} = "allow" in config.toml allows it',
        )


class Subject:
    """Who runs the container, as far as a policy may look."""

    __slots__ = ("annotations", "sys_admin", "uid", "user_namespace")

    def __init__(self, config: "dict[str, Any]", *, nested: bool = False, engine: str = "") -> None:
        """*nested*: the caller itself lives in a user namespace. *engine*: whose own annotations count."""
        process = config.get("process") or {}
        self.user_namespace = nested or has_user_namespace(config)
        self.sys_admin = "CAP_SYS_ADMIN" in bounding(process.get("capabilities"))
        self.uid = (process.get("user") or {}).get("uid", 0)
        known = ENGINE_ANNOTATIONS.get(engine, ())
        annotations = config.get("annotations") or {}
        self.annotations = {key: annotations[key] for key in known if key in annotations}


def bounding(capabilities: "Any") -> "list[Any]":
    """The bounding set of `process.capabilities`: an object, or before runtime-spec 1.0.0-rc5 an array."""
    if isinstance(capabilities, dict):
        capabilities = capabilities.get("bounding")
    return capabilities if isinstance(capabilities, list) else []


def has_user_namespace(config: "dict[str, Any]") -> bool:
    """Whether the container runs in a user namespace of its own or of another's."""
    namespaces = (config.get("linux") or {}).get("namespaces") or ()
    return any(namespace.get("type") == "user" for namespace in namespaces)


def judge(request: "Request", subject: Subject, settings: "dict[str, Any]") -> list[Verdict]:
    """A verdict on each kind that *request* needs; the selection of devices comes first."""
    return [_verdict(kind, variable, subject, settings) for kind, variable in request.kinds()]


def _verdict(kind: str, variable: str, subject: Subject, settings: "dict[str, Any]") -> Verdict:
    setting = f"gpushim.policy.{kind}"
    answer = settings[setting]
    for n, rule in enumerate(settings["gpushim.policy.rules"]):
        if kind in rule and _matches(rule, subject):
            setting = f"gpushim.policy.rules[{n}].{kind}"
            answer = rule[kind]
            break
    return Verdict(
        kind,
        variable,
        f'{setting} = "{answer}"',
        _missing(answer, subject),
        settings[f"gpushim.policy.on-refusal.{kind}"],
    )


def _missing(answer: str, subject: Subject) -> str:
    if answer == "allow":
        return ""
    if answer == "deny":
        return "the policy of this node denies it"
    if subject.user_namespace:
        return "needs CAP_SYS_ADMIN outside of a user namespace"
    if not subject.sys_admin:
        return "needs CAP_SYS_ADMIN in the container's bounding set"
    return ""


def _matches(rule: "dict[str, Any]", subject: Subject) -> bool:
    uids = rule.get("uid")
    if uids is not None and subject.uid not in (uids if isinstance(uids, list) else [uids]):
        return False
    if rule.get("user-namespace", subject.user_namespace) != subject.user_namespace:
        return False
    wanted = rule.get("annotation", {})
    return all(subject.annotations.get(key) == value for key, value in wanted.items())
