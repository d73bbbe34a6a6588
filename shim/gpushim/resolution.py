"""One container's way from its config to edits: request, policy, node, plan. The config is only read here."""

import posix as os

from gpushim.argv import is_crun
from gpushim.errors import InvalidNode, InvalidSettings
from gpushim.request import INJECTED, environment, requested
from gpushim.settings import last, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.driver import Inventory
    from gpushim.driver_files import RootWork
    from gpushim.edits import Edit
    from gpushim.identity import NvmlDevice
    from gpushim.node import Node
    from gpushim.plan import Plan
    from gpushim.policy import Verdict
    from gpushim.request import Request
    from gpushim.selection import Selection


def settings_for(config: "dict[str, Any]", environ: "dict[bytes, bytes]") -> "dict[str, Any] | None":
    """The settings in effect; None where they are broken and *config* asks for nothing: that runs still."""
    try:
        return load(environ)
    except InvalidSettings:
        if requested(config, last(environ)) is not None:
            raise
        return None


class Resolution:
    """What was asked, what policy said, what the node has, and the edits that follow."""

    __slots__ = ("edits", "identities", "node", "request", "selection", "verdicts", "warnings", "work")

    def __init__(self) -> None:
        self.request: Request | None = None
        self.verdicts: list[Verdict] = []
        self.node: Node | None = None
        self.identities: list[NvmlDevice] = []
        self.selection: Selection | None = None
        self.edits: list[Edit] = []
        self.work: RootWork | None = None
        self.warnings: list[str] = []

    def describe(self) -> str:
        """One line for the debug log."""
        what = [verdict.describe() for verdict in self.verdicts]
        what += [edit.describe() for edit in self.edits]
        what += [f"warning: {text}" for text in self.warnings]
        return "; ".join(what) or "nothing"


def resolve(
    config: "dict[str, Any]",
    settings: "dict[str, Any]",
    runtime: str,
    state_dir: str,
    into: "Resolution | None" = None,
    *,
    handler: str = "",
    live: bool = False,
) -> Resolution:
    """The edits that *config* needs under *settings*, to be run by the low-level *runtime*.

    ShimError where the container must not start; *into* then holds what was known until there. *handler* is
    the name under which the engine calls this program: it may have an engine of its own in
    `gpushim.runtimes`. *live*: the edits are for a container that exists already.
    """
    out = into or Resolution()
    out.request = requested(config, settings)
    if out.request is None:
        # The way of most containers that come this far: what follows is not even imported.
        return _finish(out, config) if INJECTED in (config.get("annotations") or {}) else out
    from gpushim.policy import Subject, judge

    engine = settings["gpushim.runtimes"].get(handler, {}).get("engine") or settings["gpushim.engine"]
    subject = Subject(config, nested=in_user_namespace(), engine=engine)
    out.verdicts = judge(out.request, subject, settings)
    granted = _granted(out)
    if granted is None:
        return _finish(out, config)
    out.node = _read_node(granted, settings, state_dir, out)
    if out.node is None:
        return _finish(out, config)
    from gpushim import node, selection
    from gpushim.plan import plan

    out.selection = selection.select(granted, out.node, out.identities)
    node.look_up(out.node, out.selection.devices)
    planned = plan(
        config,
        granted,
        out.selection,
        subject,
        out.node,
        crun=is_crun(runtime),
        groups=not settings["features.no-additional-gids-for-device-nodes"],
        live=live,
    )
    out.warnings += out.selection.warnings + planned.warnings
    _add_driver_files(granted, settings, state_dir, config, planned, out)
    return _finish(out, config, planned)


def _add_driver_files(
    request: "Request",
    settings: "dict[str, Any]",
    state_dir: str,
    config: "dict[str, Any]",
    planned: "Plan",
    out: Resolution,
) -> None:
    from gpushim import driver

    inventory = driver.read_driver(settings, state_dir)
    _check_requirements(settings, config, inventory, out)
    if inventory is None:
        return
    from gpushim import driver_files

    compat = not settings["features.disable-cuda-compat-lib-hook"]
    choice = driver_files.choose(inventory, request.capabilities, config, compat=compat)
    planned.edits += choice.mounts
    out.work = choice.work
    assert out.selection is not None
    out.selection.withheld += choice.withheld
    out.warnings += choice.warnings


def _check_requirements(
    settings: "dict[str, Any]", config: "dict[str, Any]", inventory: "Inventory | None", out: Resolution
) -> None:
    """Refused where the image requires what this node is not."""
    env = environment(config)
    if settings["disable-require"] or not any("REQUIRE_" in name or name == "CUDA_VERSION" for name in env):
        return  # the way of most images that are not CUDA's own
    from gpushim import requirements

    expressions = requirements.required(env)
    if not expressions:
        return
    if inventory is None or not inventory.cuda:
        out.warnings.append(
            f"{' and '.join(expressions)}: not checked: the driver's libcuda does not tell a version"
        )
        return

    def gpus() -> "list[dict[str, str]]":
        from gpushim.identity import read_identities

        assert out.selection is not None
        minors = [gpu.minor for gpu in out.selection.gpus]
        known = [
            one for one in out.identities or read_identities(settings) if one.mig < 0 and one.minor in minors
        ]
        return [
            {
                "arch": f"{one.arch // 10}.{one.arch % 10}" if one.arch >= 0 else "0",
                "brand": requirements.BRANDS[one.brand]
                if 0 <= one.brand < len(requirements.BRANDS)
                else "unknown",
            }
            for one in known
        ]

    requirements.check(expressions, {"cuda": inventory.cuda, "driver": inventory.version}, gpus)


def _granted(out: Resolution) -> "Request | None":
    """The part of the request that policy leaves; Refused where a refusal is to fail the container."""
    request = out.request
    assert request is not None
    for verdict in out.verdicts:
        verdict.raise_refusal()
    refused = [verdict.kind for verdict in out.verdicts if not verdict.granted]
    out.warnings += [verdict.describe() for verdict in out.verdicts if not verdict.granted]
    return None if request.kind in refused else request.without(refused)


def _read_node(
    request: "Request", settings: "dict[str, Any]", state_dir: str, out: Resolution
) -> "Node | None":
    from gpushim import node, selection

    gpus = bool(request.devices or request.management)
    found = node.read_node(settings, state_dir, patient=False, gpus=gpus)
    if found is not None and selection.must_wait(request, found):
        found = node.read_node(settings, state_dir, patient=True, gpus=gpus)
    if found is None:
        _without_driver(request, settings, out)
        return None
    if selection.needs_nvml(request, found):
        from gpushim.identity import read_identities

        out.identities = read_identities(settings)
    # After NVML's answer: what it names must be there still.
    node.read_capabilities(found, management=bool(request.extras))
    if request.imex == ("all",):
        node.read_imex_channels(found)
    if "graphics" in request.capabilities or "display" in request.capabilities:
        node.read_drm(found)
    if request.features:
        from gpushim.features import read_features

        root = settings["gpushim.roots.driver"].rstrip("/")
        found.features = read_features(request.features, found.roots.dev, root)
    return found


def _without_driver(request: "Request", settings: "dict[str, Any]", out: Resolution) -> None:
    text = f"{request.source}: asks for a GPU while no NVIDIA driver is loaded"
    if settings["gpushim.on-no-driver"] != "ignore":
        raise InvalidNode(
            "GS0401",
            text,
            hint="load it (`modprobe nvidia`), or let such containers start without a GPU: "
            'gpushim.on-no-driver = "ignore"',
        )
    out.warnings.append(f"{text}: the container starts without one")


def _finish(out: Resolution, config: "dict[str, Any]", planned: "Plan | None" = None) -> Resolution:
    from gpushim.plan import Plan, without_hooks, without_record

    rest = Plan()
    if planned is None:
        without_record(config, rest)
    if out.request is not None:
        without_hooks(config, rest)
    out.edits = (planned.edits if planned else []) + rest.edits
    return out


def audit(command: str, container_id: str, resolution: Resolution) -> None:
    """A line to the system's log for each verdict on what can change the node or reach beyond it."""
    if not resolution.verdicts:
        return
    from gpushim import policy

    for verdict in [verdict for verdict in resolution.verdicts if verdict.kind in policy.AUDITED]:
        from gpushim import log

        log.audit(f"{command} {container_id}: {verdict.kind}: {verdict.describe()}")


def in_user_namespace() -> bool:
    """Whether this process lives in a user namespace other than the first (user_namespaces(7), uid_map)."""
    fd = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 256).split() != [b"0", b"0", b"4294967295"]
    finally:
        os.close(fd)
