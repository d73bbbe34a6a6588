"""What the real tests share: a bed in each cell, the seed's node in front of an engine, engines of three generations."""

from pathlib import Path

import pytest

from tests import fakenode
from tests.real.bed import BIN, CELLS, Bed, Cell, lacking, need, root_of

_beds: dict[Cell, Bed] = {}

# Debian's suites: containerd 1.6, 1.7, 2.1; Docker 20, 26, 28; podman 4.3, 5.4, 5.8.
SUITES = ("host", "trixie", "sid")


@pytest.fixture(params=CELLS, ids=str)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """A bed in each cell that can be on this machine."""
    cell: Cell = request.param
    reason = lacking(cell)
    if reason:
        pytest.skip(f"{cell}: {reason}")
    if cell not in _beds:
        _beds[cell] = Bed(cell, Path(tmp_path_factory.mktemp(str(cell))))
    return _beds[cell]


@pytest.fixture(scope="session", params=SUITES)
def root(request: pytest.FixtureRequest) -> str:
    """The root directory of a Debian suite with its engines."""
    need("runc", "crun", "unshare", "gcc", "containerd", "dockerd", "docker", "podman", "busybox")
    reason = lacking(Cell("host", "runc", "v1"))
    if reason:
        pytest.skip(reason)  # engines set cpu shares, whose controller v1 holds on the machines we know
    return root_of(request.param)


class SeedNode:
    """The seed's node, and the environment that makes a shim see it."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.node = fakenode.build(directory, "seed", avoid=fakenode.real_majors())
        self.settings = directory / "config.toml"
        with self.settings.open("a") as file:
            file.write("".join(f"{line}\n" for line in settings))
        self.env = {"GPUSHIM_CONFIG": str(self.settings), "GPUSHIM_STATE": str(directory / "state")}

    def shim(self, path: Path) -> str:
        """The shim as an engine's runtime at *path*, seeing this node: engines hand on no environment.

        What it was given stays at *path*.before.json.
        """
        variables = " ".join(f"{name}={value}" for name, value in self.env.items())
        script = f"{keep_config(Path(f'{path}.before.json'))}\nexport {variables}\n"
        path.write_text(f'#!/bin/bash\n{script}exec -a {path.name} {BIN}/gpushim-runtime "$@"\n')
        path.chmod(0o755)
        return str(path)

    def hook(self, path: Path) -> str:
        """gpushim-hook under the name of *path*, seeing this node: Docker gives NVIDIA's hook no options."""
        options = " ".join(f"--{name[8:].lower()} {value}" for name, value in self.env.items())
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/bash\nexec -a {path.name} {BIN}/gpushim-hook {options} "$@"\n')
        path.chmod(0o755)
        return str(path)


def keep_config(kept: Path) -> str:
    """Lines of bash that copy the config.json of the bundle in the arguments to *kept*."""
    return f"""for ((i = 1; i <= $#; i++)); do
    if [ "${{!i}}" = --bundle ] || [ "${{!i}}" = -b ]; then
        j=$((i + 1))
        cp "${{!j}}/config.json" {kept}
    fi
done"""


def recorder(path: Path, runtime: str) -> str:
    """A low-level *runtime* at *path* that keeps what it is given at *path*.json."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/bash\n{keep_config(Path(f"{path}.json"))}\nexec {runtime} "$@"\n')
    path.chmod(0o755)
    return str(path)
