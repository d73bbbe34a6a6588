"""Root file systems of several kinds, made of this machine's own C library: each as small as it can be."""

import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
LDCONFIG = "/sbin/ldconfig"


class Kind:
    """Where a distribution keeps its libraries, and what its loader goes by."""

    def __init__(self, libraries: str, *, links: dict[str, str] | None = None, ldconfig: bool = True, conf: str = "", cache: bool = True) -> None:  # fmt: skip
        self.libraries = libraries
        self.links = links or {}
        self.ldconfig = ldconfig
        self.conf = conf
        self.cache = cache


_MULTIARCH = "usr/lib/x86_64-linux-gnu"
_MERGED = {"lib": "usr/lib", "lib64": "usr/lib64"}
KINDS = {
    "debian": Kind(_MULTIARCH, links=_MERGED, conf="include /etc/ld.so.conf.d/*.conf\n"),
    "rhel": Kind("usr/lib64", links=_MERGED, conf="include ld.so.conf.d/*.conf\n"),
    "no-cache": Kind(_MULTIARCH, links=_MERGED, conf="include /etc/ld.so.conf.d/*.conf\n", cache=False),
    "no-conf": Kind(_MULTIARCH, links=_MERGED),
    "distroless": Kind("lib/x86_64-linux-gnu", ldconfig=False, cache=False),
}


def make(kind: str, root: Path) -> None:
    """A root of *kind*, with /loads and, where it has one, ldconfig."""
    what = KINDS[kind]
    for name in ("dev", "proc", "sys", "tmp", "etc", "usr/lib", "usr/lib64"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, target in what.links.items():
        (root / name).symlink_to(target)
    (root / what.libraries).mkdir(parents=True, exist_ok=True)
    (root / "lib64").mkdir(exist_ok=True)
    subprocess.run(["gcc", "-O1", "-o", str(root / "loads"), str(HERE / "loads.c"), "-ldl"], check=True)
    programs = [root / "loads"]
    if what.ldconfig:
        (root / "usr/sbin").mkdir()
        shutil.copy(LDCONFIG, root / "usr/sbin/ldconfig")
    for library in _needed(programs):
        if "ld-linux" in library.name:
            shutil.copy(library, root / "lib64" / library.name)
        else:
            shutil.copy(library, root / what.libraries / library.name)
    if what.conf:
        (root / "etc/ld.so.conf").write_text(what.conf)
        (root / "etc/ld.so.conf.d").mkdir()
        (root / "etc/ld.so.conf.d/own.conf").write_text(f"/{what.libraries}\n")
    if what.cache:
        subprocess.run(
            [LDCONFIG, "-r", str(root), *([] if what.conf else [f"/{what.libraries}"])], check=True
        )


def _needed(programs: list[Path]) -> set[Path]:
    out = set()
    for program in programs:
        text = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        out |= {Path(path) for path in re.findall(r"(/\S+) \(0x", text)}
    return out
