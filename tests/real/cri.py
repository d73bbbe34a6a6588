"""containerd as Kubernetes uses it: pods and containers over CRI, on a private containerd without a network."""

import contextlib
import importlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc

from tests.real import image
from tests.real.bed import BIN, ENGINES, HERE

IMAGE = "localhost/gpushim/test:1"
_number = itertools.count()


class Containerd:
    """One running containerd; *root* is / or a Debian root, *directory* holds everything of it."""

    def __init__(self, directory: Path, root: str, handlers: dict[str, str], enter: list[str]) -> None:  # fmt: skip
        self.directory = directory
        self.root = root
        self._enter = enter
        self.socket = directory / "c.sock"
        (directory / "logs").mkdir()
        self.version = self._version()
        config = directory / "containerd.toml"
        config.write_text(_config(self.version, directory, self.socket, handlers))
        # A path in the root that is short: containerd's own sockets stand below it.
        self._log = (directory / "containerd.log").open("w")
        self._process = subprocess.Popen(
            [*enter, "containerd", "--config", str(config)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._pb, services = _speak(directory)
        channel = grpc.insecure_channel(f"unix:{self.socket}", options=[("grpc.enable_http_proxy", 0)])
        self._channel = channel
        self._service = services.RuntimeServiceStub(channel)

    def ready(self) -> None:
        """Wait until it answers, and give it the image."""
        directory = self.directory
        self._wait()
        archive = directory / "image.tar"
        image.make(archive, IMAGE, Path("/bin/busybox"), _prober(directory))
        ctr = [*self._enter, "ctr", "-a", str(self.socket), "-n", "k8s.io", "images", "import"]
        # ctr of 2.x unpacks in the daemon unless told, and knows no snapshotter then.
        local = ["--local"] if self.version >= (2, 0) else []
        done = subprocess.run(
            [*ctr, *local, "--snapshotter", "native", str(archive)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def run_here(self, *argv: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        """*argv* where this containerd runs, with its /run."""
        command = ["nsenter", "-t", str(self._process.pid), "-m", "--", *argv]
        return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)

    def _version(self) -> tuple[int, int]:
        done = subprocess.run(
            [*self._enter, "containerd", "--version"], capture_output=True, text=True, check=True
        )
        found = re.search(r"(\d+)\.(\d+)\.\d+", done.stdout)
        assert found, done.stdout
        return int(found[1]), int(found[2])

    def _wait(self) -> None:
        for _ in range(150):
            with contextlib.suppress(grpc.RpcError):
                self._service.Version(self._pb.VersionRequest(version="v1"), timeout=2)
                return
            time.sleep(0.1)
        raise AssertionError((self.directory / "containerd.log").read_text()[-3000:])

    def stop(self) -> None:
        self._channel.close()
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(timeout=30)
        self._log.close()

    @contextmanager
    def pod(self, handler: str, *, privileged: bool = False) -> Iterator["Pod"]:
        """A sandbox under *handler*, taken down with all its containers; *privileged*: they may be."""
        pb = self._pb
        node = pb.NamespaceOption(network=pb.NODE)
        security = pb.LinuxSandboxSecurityContext(namespace_options=node, privileged=privileged)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="pod", uid=str(uuid.uuid4()), namespace="gpu-monitoring"),
            log_directory=str(self.directory / "logs"),
            linux=pb.LinuxPodSandboxConfig(security_context=security),
        )
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=handler)
        sandbox = self._service.RunPodSandbox(request, timeout=60).pod_sandbox_id
        try:
            yield Pod(self, sandbox, config)
        finally:
            self._service.StopPodSandbox(pb.PodSandboxId(pod_sandbox_id=sandbox), timeout=60)
            self._service.RemovePodSandbox(pb.PodSandboxId(pod_sandbox_id=sandbox), timeout=60)


class Pod:
    """One sandbox."""

    def __init__(self, containerd: Containerd, sandbox: str, config: Any) -> None:
        self._service = containerd._service
        self._pb = containerd._pb
        self._sandbox = sandbox
        self._config = config

    def start(self, env: tuple[str, ...], *, capabilities: tuple[str, ...] = (), privileged: bool = False, annotations: "dict[str, str] | None" = None) -> str:  # fmt: skip
        """Create and start a container; its id. grpc.RpcError with the runtime's message where it is refused."""
        pb = self._pb
        pairs = [pb.KeyValue(key=one.partition("=")[0], value=one.partition("=")[2]) for one in env]
        security = pb.LinuxContainerSecurityContext(
            capabilities=pb.Capability(add_capabilities=capabilities),
            privileged=privileged,
            namespace_options=pb.NamespaceOption(network=pb.NODE),
            seccomp=None if privileged else pb.SecurityProfile(profile_type=pb.RuntimeDefault),
        )
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=f"container{next(_number)}"),
            image=pb.ImageSpec(image=IMAGE),
            command=["/bin/sleep", "3600"],
            envs=pairs,
            annotations=annotations or {},
            log_path="container.log",
            linux=pb.LinuxContainerConfig(security_context=security),
        )
        request = pb.CreateContainerRequest(
            pod_sandbox_id=self._sandbox, config=config, sandbox_config=self._config
        )
        container: str = self._service.CreateContainer(request, timeout=60).container_id
        self._service.StartContainer(pb.ContainerId(container_id=container), timeout=60)
        return container

    def execute(self, container: str, *argv: str) -> str:
        """The standard output of *argv* inside."""
        request = self._pb.ExecSyncRequest(container_id=container, cmd=argv, timeout=20)
        answer = self._service.ExecSync(request, timeout=30)
        assert answer.exit_code == 0, answer.stderr
        out: bytes = answer.stdout
        return out.decode()


@contextmanager
def containerd(directory: Path, root: str, handlers: dict[str, str]) -> Iterator[Containerd]:
    """A containerd in *root* whose *handlers* are {name: path of the runtime}."""
    shared = [str(directory)] + ([] if root == "/" else [str(BIN.parent), sys.base_prefix])
    enter = [str(ENGINES / "enter"), root, "v1", *shared, "--"]
    running = Containerd(directory, root, handlers, enter)
    try:
        running.ready()
        yield running
    finally:
        running.stop()


def _config(version: tuple[int, int], directory: Path, socket: Path, handlers: dict[str, str]) -> str:
    new = version[0] >= 2
    runtime = "io.containerd.cri.v1.runtime" if new else "io.containerd.grpc.v1.cri"
    images = "io.containerd.cri.v1.images" if new else "io.containerd.grpc.v1.cri"
    lines = [
        f"version = {3 if new else 2}",
        f'root = "{directory}/root"',
        f'state = "{directory}/state"',
        f'[grpc]\naddress = "{socket}"',
        f"[plugins.'{runtime}']\ndisable_apparmor = true\nrestrict_oom_score_adj = true",
    ]
    if new:
        lines += [
            f"[plugins.'{images}']\nsnapshotter = 'native'",
            f"[plugins.'{images}'.pinned_images]\nsandbox = '{IMAGE}'",
        ]
    else:
        lines += [f"sandbox_image = '{IMAGE}'", f"[plugins.'{runtime}'.containerd]\nsnapshotter = 'native'"]
    for name, path in {"runc": "runc", **handlers}.items():
        table = f"plugins.'{runtime}'.containerd.runtimes.{name}"
        lines += [f"[{table}]", "runtime_type = 'io.containerd.runc.v2'"]
        # What a pod says passes through to the config: what the engine says itself must still come last.
        lines += ["container_annotations = ['*']", "pod_annotations = ['*']"]
        lines += [f"[{table}.options]", f"BinaryName = '{path}'"]
    return "\n".join(lines) + "\n"


def _speak(directory: Path) -> tuple[ModuleType, ModuleType]:
    """The messages and the service of cri.proto, generated here and now."""
    from grpc_tools import protoc

    out = directory / "generated"
    out.mkdir()
    assert (
        protoc.main(["protoc", f"-I{HERE}", f"--python_out={out}", f"--grpc_python_out={out}", "cri.proto"])
        == 0
    )
    if "cri_pb2" not in sys.modules:
        sys.path.insert(0, str(out))
        importlib.import_module("cri_pb2_grpc")
        sys.path.remove(str(out))
    return sys.modules["cri_pb2"], sys.modules["cri_pb2_grpc"]


def _prober(directory: Path) -> Path:
    out = directory / "opens"
    subprocess.run(["gcc", "-O1", "-static", "-o", str(out), str(HERE / "opens.c")], check=True)
    return out
