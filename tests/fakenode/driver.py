"""The files of a driver below the simulated node's driver root: real ELF libraries with real SONAMEs."""

import functools
import platform
import subprocess
import tempfile
from pathlib import Path

VERSION = "580.126.09"
WHERE = f"usr/lib/{platform.machine()}-linux-gnu"

# Stem → SONAME; a few of each capability, and one that no table knows.
SONAMES = {
    "cuda": "libcuda.so.1",
    "nvidia-ml": "libnvidia-ml.so.1",
    "nvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
    "nvidia-allocator": "libnvidia-allocator.so.1",
    "nvcuvid": "libnvcuvid.so.1",
    "GLX_nvidia": "libGLX_nvidia.so.0",
    "nvidia-glcore": f"libnvidia-glcore.so.{VERSION}",
    "nvidia-ngx": "libnvidia-ngx.so.1",
    "nvidia-tomorrow": "libnvidia-tomorrow.so.1",
}
_CUDA = "int cuInit(unsigned flags) { return flags ? 1 : 0; }\nint cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n"


@functools.cache
def library(soname: str, source: str = "") -> bytes:
    """A shared object of that SONAME."""
    with tempfile.TemporaryDirectory() as directory:
        code, out = Path(directory) / "x.c", Path(directory) / "x.so"
        code.write_text(source or f'const char name[] = "{soname}";\n')
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(out), str(code)], check=True
        )
        return out.read_bytes()


def install(root: Path, version: str = VERSION, *, where: str = WHERE) -> None:
    """The driver *version* below *root*, its libraries in *where*."""
    install_libraries(root / where, version)
    for name in ("nvidia-smi", "nvidia-cuda-mps-server"):
        program = root / "usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    firmware = root / f"lib/firmware/nvidia/{version}"
    firmware.mkdir(parents=True)
    (firmware / "gsp_ga10x.bin").write_bytes(b"firmware")
    icd = root / "etc/vulkan/icd.d/nvidia_icd.json"
    icd.parent.mkdir(parents=True)
    icd.write_text("{}")


def install_libraries(directory: Path, version: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    nvml = (Path(__file__).parent / "nvml.c").read_text()
    sources = {"cuda": _CUDA, "nvidia-ml": nvml}
    for stem, soname in SONAMES.items():
        data = library(soname.replace(VERSION, version), sources.get(stem, ""))
        (directory / f"lib{stem}.so.{version}").write_bytes(data)
    (directory / "libnvidia-ml.so.1").unlink(missing_ok=True)
    (directory / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")
    (directory / "libnvidia-encode.so.1").write_bytes(library("libnvidia-encode.so.1"))  # without a version
