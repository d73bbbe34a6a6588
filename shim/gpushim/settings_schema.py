"""Every key of config.toml but the two that hold tables: one row each. Cold."""

from typing import Any, NamedTuple

from gpushim.policy import KINDS
from gpushim.request import CAPABILITIES

ANSWERS = ("sys-admin", "allow", "deny")


class Key(NamedTuple):
    """One setting: *type* is bool, str, float, or list (of strings); *choices* are its only values."""

    name: str
    type: type
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()


_TOOLKIT_ONLY = "of the NVIDIA toolkit; accepted, without effect here"

KEYS = (
    Key("gpushim.on-no-driver", str, "error", "what a request gets while no NVIDIA driver is loaded", ("error", "ignore")),
    Key("gpushim.driver-capabilities", str, "requested", "`all` gives every container every supported capability", ("requested", "all")),
    Key("gpushim.driver-timeout", float, 10, "seconds that a driver has to answer a question"),
    Key("gpushim.dev-char", str, "auto", "whether links in /dev/char are made for nodes that are injected", ("auto", "always", "never")),
    Key("gpushim.engine", str, "", "the engine whose own annotations rules may trust", ("", "containerd", "crio")),
    Key("gpushim.annotation-prefixes", list, [], "annotations that may name devices"),
    Key("gpushim.annotations-under-podman", bool, False, "annotations count under podman too, which copies an image's beside the user's"),
    Key("gpushim.cdi-env-vendors", list, ["nvidia.com", "runtime.nvidia.com", "management.nvidia.com"], "vendors whose CDI devices an environment may name"),
    Key("gpushim.log", str, "", "the debug log: a file, `syslog`, or empty for none"),
    Key("gpushim.roots.driver", str, "/", "where the driver's files stand; default: nvidia-container-cli.root"),
    Key("gpushim.roots.dev", str, "/", "the directory that holds dev/; default: nvidia-container-cli.root"),
    Key("gpushim.roots.proc", str, "/proc", "the kernel's proc file system"),
    Key("gpushim.roots.sys", str, "/sys", "the kernel's sysfs"),
    *[Key(f"gpushim.policy.{kind}", str, "allow" if kind.startswith("devices-") or kind in ("imex", "features") else "sys-admin", f"who may have {kind}", ANSWERS) for kind in KINDS],
    *[Key(f"gpushim.policy.on-refusal.{kind}", str, "ignore" if kind == "devices-env" else "fail", f"what a refusal of {kind} does", ("fail", "ignore")) for kind in KINDS],
    Key("disable-require", bool, False, "no check of NVIDIA_REQUIRE_*"),
    Key("swarm-resource", str, "", "variables, with commas, that win over NVIDIA_VISIBLE_DEVICES"),
    Key("accept-nvidia-visible-devices-envvar-when-unprivileged", bool, True, "devices by environment for everyone; false: `sys-admin`"),
    Key("accept-nvidia-visible-devices-as-volume-mounts", bool, False, "devices by mounts of /dev/null"),
    Key("supported-driver-capabilities", str, ",".join(CAPABILITIES), "the capabilities this node gives at most, with commas, or `all`"),
    Key("nvidia-container-cli.root", str, "", "the driver's root: default of gpushim.roots.driver and gpushim.roots.dev"),
    Key("nvidia-container-cli.path", str, "", _TOOLKIT_ONLY),
    Key("nvidia-container-cli.environment", list, [], _TOOLKIT_ONLY),
    Key("nvidia-container-cli.debug", str, "", _TOOLKIT_ONLY),
    Key("nvidia-container-cli.ldcache", str, "", _TOOLKIT_ONLY),
    Key("nvidia-container-cli.load-kmods", bool, True, _TOOLKIT_ONLY),
    Key("nvidia-container-cli.no-pivot", bool, False, _TOOLKIT_ONLY),
    Key("nvidia-container-cli.no-cgroups", bool, False, _TOOLKIT_ONLY),
    Key("nvidia-container-cli.user", str, "", _TOOLKIT_ONLY),
    Key("nvidia-container-cli.ldconfig", str, "", _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.debug", str, "/dev/null", _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.log-level", str, "info", _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.runtimes", list, ["runc", "crun"], "candidates for the low-level runtime, names or paths, best first"),
    Key("nvidia-container-runtime.mode", str, "auto", "how requests are resolved; `legacy` is as `auto`, `csv` is not supported", ("auto", "jit-cdi", "cdi", "legacy", "csv")),
    Key("nvidia-container-runtime.modes.csv.mount-spec-path", str, "/etc/nvidia-container-runtime/host-files-for-container.d", _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.modes.csv.compat-container-root", str, "", _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.modes.cdi.default-kind", str, "nvidia.com/gpu", "the kind of an unqualified name in mode `cdi`"),
    Key("nvidia-container-runtime.modes.cdi.annotation-prefixes", list, ["cdi.k8s.io/"], _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.modes.cdi.spec-dirs", list, ["/etc/cdi", "/var/run/cdi"], "directories of CDI specs"),
    Key("nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags", list, [], _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks", list, [], _TOOLKIT_ONLY),
    Key("nvidia-container-runtime.modes.legacy.cuda-compat-mode", str, "ldconfig", _TOOLKIT_ONLY),
    Key("nvidia-container-runtime-hook.path", str, "nvidia-container-runtime-hook", _TOOLKIT_ONLY),
    Key("nvidia-container-runtime-hook.skip-mode-detection", bool, False, _TOOLKIT_ONLY),
    Key("nvidia-ctk.path", str, "nvidia-ctk", _TOOLKIT_ONLY),
    Key("features.allow-cuda-compat-libs-from-container", bool, False, _TOOLKIT_ONLY),
    Key("features.allow-ldconfig-from-container", bool, False, _TOOLKIT_ONLY),
    Key("features.allow-unknown-oci-spec-fields", bool, False, "unknown fields always survive; " + _TOOLKIT_ONLY),
    Key("features.disable-cuda-compat-lib-hook", bool, False, "CUDA's compatibility libraries of an image are never taken"),
    Key("features.disable-imex-channel-creation", bool, False, _TOOLKIT_ONLY),
    Key("features.ignore-imex-channel-requests", bool, False, "NVIDIA_IMEX_CHANNELS counts for nothing"),
    Key("features.no-additional-gids-for-device-nodes", bool, False, "no process is put into the group that owns a node"),
)  # fmt: skip
BY_NAME = {key.name: key for key in KEYS}
