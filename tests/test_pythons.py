"""The other Pythons that are supported and at hand: the wheel builds, and the tests that need no engine pass."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
SUPPORTED = [(3, minor) for minor in range(10, 14)]
TESTS = ["pytest>=8", "hypothesis>=6.100"]


def interpreter(version: tuple[int, int]) -> str | None:
    """The path of that Python, on PATH or where pyenv keeps them."""
    name = ".".join(map(str, version))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in [*sorted(root.glob(f"versions/{name}.*/bin/python{name}")), shutil.which(f"python{name}")]:
        if (
            path
            and subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0
        ):
            return str(path)
    return None


AT_HAND = {
    version: path
    for version in SUPPORTED
    if version != sys.version_info[:2] and (path := interpreter(version))
}


@pytest.mark.parametrize("version", AT_HAND, ids=lambda version: ".".join(map(str, version)))
def test_another_python(version: tuple[int, int], tmp_path: Path) -> None:
    subprocess.run([AT_HAND[version], "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv/bin/python")
    # A build directory of its own: the checkout's belongs to the Python that runs this.
    build = f"--config-settings=build-dir={tmp_path}/build"
    subprocess.run([python, "-m", "pip", "install", "--quiet", build, ".", *TESTS], cwd=CHECKOUT, check=True)
    argv = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests",
        "--ignore=tests/real",
        "--ignore=tests/test_lint.py",
    ]
    argv += ["--ignore=tests/test_pythons.py", "--deselect=tests/test_launcher.py::test_c_is_formatted"]

    done = subprocess.run([python, *argv], cwd=CHECKOUT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-5000:]


def test_the_supported_pythons_are_those_that_are_declared() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text()

    assert [f"Python :: {major}.{minor}" in text for major, minor in SUPPORTED] == [True] * 4
    assert 'requires-python = ">=3.10"' in text
