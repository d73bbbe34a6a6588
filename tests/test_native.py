"""cffi_src/native.c through gpushim.linux: every entry point, and what it leaves behind."""

import ast
import contextlib
import errno
import os
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from gpushim import linux
from gpushim._native import lib
from tests import fakenode
from tests.fakenode.driver import library

PACKAGE = Path(linux.__file__).parent


def test_stub_declares_what_the_library_has() -> None:
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    stub = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Lib")

    names = set()
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)

    assert names == set(dir(lib))


def test_stat_many_answers_for_each_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/nowhere")

    null, missing, link, odd = linux.stat_many(
        ["/dev/null", str(tmp_path / "missing"), str(tmp_path / "link"), "/\udcff"]
    )

    assert null[0] == 0 and stat.S_ISCHR(null[1]) and null[2:4] == [1, 3]
    assert missing == [errno.ENOENT, 0, 0, 0, 0, 0]
    assert link[0] == 0 and stat.S_ISLNK(link[1])
    assert odd[0] == errno.ENOENT
    assert linux.stat_many([]) == []


def write_access(
    path: Path, text: str = "DeviceFileMinor: 3\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_capabilities_walks_the_whole_tree(tmp_path: Path) -> None:
    write_access(tmp_path / "mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    write_access(tmp_path / "mig/monitor", "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    write_access(tmp_path / "gpu0/mig/gi7/access", "DeviceFileMinor: 66\nDeviceFileMode: 292\n")
    write_access(tmp_path / "gpu0/mig/gi7/ci0/access", "DeviceFileMinor:\t67\nDeviceFileMode: 292\n")
    write_access(tmp_path / "gpu31/mig/gi14/ci7/access", "DeviceFileMinor: 4322\nDeviceFileMode: 292\n")
    (tmp_path / "gpu1/mig").mkdir(parents=True)
    for odd in ("gpux", "gpu", "gpu-1", "gpu0/mig/gi", "gpu0/mig/gi7x", "gpu0/mig/gi7/ci"):
        (tmp_path / odd).mkdir(parents=True)

    assert sorted(linux.capabilities(str(tmp_path))) == [
        [-1, 0, -1, 1, 256, 0],
        [-1, 1, -1, 2, 292, 0],
        [0, 7, -1, 66, 292, 0],
        [0, 7, 0, 67, 292, 0],
        [31, 14, 7, 4322, 292, 0],
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("DeviceFileMinor: x\nDeviceFileMode: 292\n", id="no-number"),
        pytest.param("DeviceFileMinor:\nDeviceFileMode: 292\n", id="no-value"),
        pytest.param("DeviceFileMinor: -3\nDeviceFileMode: 292\n", id="negative"),
        pytest.param("DeviceFileMinor: 99999999999999999999\nDeviceFileMode: 292\n", id="too-large"),
        pytest.param("DeviceFileMinor: 3x\nDeviceFileMode: 292\n", id="more-behind"),
        pytest.param("DeviceFileMinor: 3\nDeviceFileMode: 99999\n", id="no-mode"),
        pytest.param("DeviceFileMinor: 3\n", id="mode-missing"),
        pytest.param("xDeviceFileMinor: 3\nDeviceFileMode: 292\n", id="another-field"),
        pytest.param("\0" * 4000, id="binary"),
        pytest.param("x" * 100_000, id="huge"),
    ],
)
def test_nonsense_in_an_access_file_is_that_files_fault(tmp_path: Path, text: str) -> None:
    write_access(tmp_path / "gpu0/mig/gi1/access", text)
    write_access(tmp_path / "gpu0/mig/gi2/access")

    rows = sorted(linux.capabilities(str(tmp_path)))

    assert [row[5] for row in rows] == [errno.EINVAL, 0]


def test_an_access_file_that_is_a_fifo_or_a_directory_does_not_hold_us(tmp_path: Path) -> None:
    (tmp_path / "gpu0/mig/gi1").mkdir(parents=True)
    os.mkfifo(tmp_path / "gpu0/mig/gi1/access")
    (tmp_path / "gpu0/mig/gi2/access").mkdir(parents=True)

    rows = sorted(linux.capabilities(str(tmp_path)))

    assert [row[5] for row in rows] == [errno.EINVAL, errno.EISDIR]


def test_a_tree_of_any_size_comes_whole(tmp_path: Path) -> None:
    for gpu in range(32):
        for gi in range(15):
            write_access(tmp_path / f"gpu{gpu}/mig/gi{gi}/access")
            write_access(tmp_path / f"gpu{gpu}/mig/gi{gi}/ci0/access")

    assert len(linux.capabilities(str(tmp_path))) == 32 * 15 * 2


def test_a_directory_that_cannot_be_read_is_an_error_and_not_an_absence(tmp_path: Path) -> None:
    """Out of descriptors, a GPU must not look like one without instances."""
    write_access(tmp_path / "gpu0/mig/gi1/access")
    write_access(tmp_path / "gpu0/mig/gi1/ci0/access")
    program = f"""
import os, resource
from gpushim import linux
free = len(os.listdir("/proc/self/fd")) - 1
for more in range(6):
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, 4096))
    try:
        rows = linux.capabilities({str(tmp_path)!r})
        print(len(rows), [os.strerror(row[5]) for row in rows if row[5]])
    except OSError as problem:
        print(problem.strerror)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    lines = done.stdout.splitlines()
    assert lines[0] == "Too many open files" and lines[-1] == "2 []"
    assert all("Too many open files" in line or line == "2 []" for line in lines)


def test_no_tree_is_an_os_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        linux.capabilities(str(tmp_path / "none"))

    assert raised.value.filename == str(tmp_path / "none")


def test_read_files_brings_each_file_or_its_errno(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text\n")
    (tmp_path / "large").write_bytes(b"x" * 100_000)

    answers = linux.read_files([str(tmp_path / name) for name in ("a", "missing", "large")], 1, 1)

    assert answers == [(0, b"text\n"), (errno.ENOENT, b""), (0, b"x" * lib.GS_FILE_SIZE)]


def test_a_file_that_hangs_costs_the_deadline_and_no_other_file(tmp_path: Path) -> None:
    paths = [str(tmp_path / str(n)) for n in range(5)]
    for path in paths[::2]:
        Path(path).write_text(path)
    for path in paths[1::2]:
        os.mkfifo(path)
    started = time.monotonic()

    answers = linux.read_files(paths, 0.05, 0.3)

    assert 0.25 < time.monotonic() - started < 2
    assert [answer[0] for answer in answers] == [0, errno.ETIMEDOUT, 0, errno.ETIMEDOUT, 0]
    assert answers[4] == (0, paths[4].encode())


def test_a_file_that_is_slow_comes_through(tmp_path: Path) -> None:
    path = tmp_path / "slow"
    os.mkfifo(path)
    writer = subprocess.Popen(["sh", "-c", f"sleep 0.3; echo late > {path}"])

    # One reader: of two that open a FIFO, one would see its end.
    assert linux.read_files([str(path)], 3, 5) == [(0, b"late\n")]
    assert writer.wait() == 0


def test_a_lost_reader_holds_nothing_of_ours_and_ends_by_itself(tmp_path: Path) -> None:
    fifo = tmp_path / "hangs"
    os.mkfifo(fifo)
    kept, other = os.pipe()
    os.set_inheritable(other, True)

    linux.read_files([str(fifo)], 0.05, 0.2)
    os.close(other)

    os.set_blocking(kept, False)
    assert os.read(kept, 1) == b""  # end of file at once: no reader has the other end
    os.close(kept)
    deadline = time.monotonic() + 5
    while (left := _processes_that_open(fifo)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _processes_that_open(path: Path) -> list[str]:
    """Processes of this command line that sleep in an open(2) of a FIFO."""
    out = []
    mine = Path("/proc/self/cmdline").read_bytes()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()) or not process.joinpath("cmdline").exists():
            continue
        with contextlib.suppress(OSError):  # it ended while we looked
            if (process / "cmdline").read_bytes() == mine and os.readlink(process / "cwd") == "/":
                out.append(process.name)
    return out


@pytest.mark.parametrize("closed", [(), (0,), (0, 1), (1, 2), (0, 1, 2)])
def test_descriptors_that_the_caller_had_closed_confuse_nobody(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    """NVML that writes to its standard output writes to nobody, and what is asked comes through."""
    fakenode.build(tmp_path / "node", "seed")
    fakenode.sabotage(tmp_path / "node", "chatter")
    (library,) = (tmp_path / "node/driver").rglob("libnvidia-ml.so.1")
    (tmp_path / "file").write_text("text")
    program = f"""
import os
for fd in {closed!r}:
    os.close(fd)
from gpushim import linux
files = linux.read_files([{str(tmp_path / "file")!r}, "/none"], 1, 1)
devices = linux.nvml({str(library)!r}, 5)
done = os.open({str(tmp_path / "done")!r}, os.O_WRONLY | os.O_CREAT)
os.write(done, repr((files, devices[0], len(devices[2]))).encode())
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "done").read_text() == repr(([(0, b"text"), (errno.ENOENT, b"")], 0, 8))


@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_SIGPENDING", 0), ("RLIMIT_NOFILE", 8)])
def test_a_reader_that_cannot_start_says_nothing_about_the_file(
    tmp_path: Path, limit: str, value: int
) -> None:
    """A GPU whose file is fine must not look like one that hangs, and be left out of `all`."""
    file = tmp_path / "file"
    file.write_text("text")
    program = f"""
import resource
from gpushim import linux
resource.setrlimit(resource.{limit}, ({value}, {value}))
try:
    print(linux.read_files([{str(file)!r}], 1, 5))
except OSError as problem:
    print(problem.filename, problem.strerror)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == f"{file} Resource temporarily unavailable\n"


def test_a_path_in_a_root_stays_in_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "etc").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "etc/here").write_text("here")
    (root / "absolute").symlink_to("/etc")
    (root / "up").symlink_to("../../../../../../outside")
    (root / "loop").symlink_to("loop")
    (root / "magic").symlink_to("/proc/self/fd/0")
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)

    for path in ("etc/here", "/etc/here", "../../etc/here", "absolute/here"):
        opened = linux.open_in_root(fd, path, os.O_RDONLY)
        assert os.read(opened, 10) == b"here"
        assert not os.get_inheritable(opened)
        os.close(opened)
    for path, number in (("up/secret", errno.ENOENT), ("loop", errno.ELOOP), ("etc/none", errno.ENOENT)):
        with pytest.raises(OSError) as raised:
            linux.open_in_root(fd, path, os.O_RDONLY)
        assert (raised.value.errno, raised.value.filename) == (number, path)
    made = linux.open_in_root(fd, "absolute/new", os.O_WRONLY | os.O_CREAT, 0o640)
    os.close(made)
    assert (root / "etc/new").exists()
    os.close(fd)


def test_a_component_that_is_swapped_never_leads_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for directory in (root / "d", outside):
        directory.mkdir(parents=True)
        (directory / "file").write_text(directory.name)
    (root / "swap").symlink_to(outside)
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    swapper = subprocess.Popen(
        [sys.executable, "-c", _SWAP, str(root / "d"), str(root / "swap")], stdout=subprocess.PIPE
    )
    assert swapper.stdout is not None and swapper.stdout.readline() == b"swapping\n"

    seen = set()
    for _ in range(3000):
        try:
            opened = linux.open_in_root(fd, "d/file", os.O_RDONLY)
        except OSError as problem:
            seen.add(errno.errorcode[problem.errno or 0])
            continue
        seen.add(os.read(opened, 20).decode())
        os.close(opened)
    swapper.kill()
    swapper.wait()
    swapper.stdout.close()
    os.close(fd)

    assert "outside" not in seen
    assert "d" in seen


_SWAP = """
import ctypes, sys
print("swapping", flush=True)
libc = ctypes.CDLL(None)
a, b = (path.encode() for path in sys.argv[1:])
while True:
    libc.renameat2(-100, a, -100, b, 2)
"""


def test_no_entry_point_leaks_memory_or_descriptors(tmp_path: Path) -> None:
    write_access(tmp_path / "gpu0/mig/gi1/access")
    (tmp_path / "file").write_text("text")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)

    fakenode.build(tmp_path / "node", "seed")
    (library,) = (tmp_path / "node/driver").rglob("libnvidia-ml.so.1")

    def once() -> None:
        assert len(linux.nvml(str(library), 5)[2]) == 8
        linux.stat_many(["/dev/null"] * 100)
        linux.capabilities(str(tmp_path))
        linux.read_files([str(tmp_path / "file"), str(tmp_path / "none")], 1, 1)
        os.close(linux.open_in_root(fd, "file", os.O_RDONLY))
        for wrong in (lambda: linux.capabilities("/none"), lambda: linux.open_in_root(fd, "none", 0)):
            with pytest.raises(OSError):
                wrong()

    for _ in range(50):
        once()
    descriptors = os.listdir("/proc/self/fd")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(500):
        once()

    assert os.listdir("/proc/self/fd") == descriptors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 2048  # KiB
    os.close(fd)


def test_a_program_that_may_not_be_loaded_is_a_permission_error() -> None:
    """Having raised the limit on locked memory, or not been allowed to."""
    program = """
from gpushim import linux
try:
    linux.load_program(bytes.fromhex("b700000001000000" "9500000000000000"), b"GPL", "test")
except PermissionError as problem:
    print(problem.strerror, problem.filename)
"""
    done = subprocess.run(
        ["unshare", "-Ur", sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "Operation not permitted bpf program\n"


def test_a_shared_object_tells_its_soname(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(library("libx.so.7"))
    fd = os.open(path, os.O_RDONLY)

    bits, machine, soname = linux.elf(fd, str(path))

    assert (bits, soname) == (64, "libx.so.7")
    assert machine == {"x86_64": 62, "aarch64": 183}[os.uname().machine]


@pytest.mark.fuzz
@hypothesis.given(
    at=st.integers(0, 20_000), patch=st.binary(min_size=1, max_size=8), size=st.integers(0, 20_000)
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_no_header_makes_more_of_it_than_an_error(tmp_path: Path, at: int, patch: bytes, size: int) -> None:
    path = tmp_path / "x.so"
    data = library("libx.so.7")
    path.write_bytes((data[:at] + patch + data[at + len(patch) :])[:size])
    fd = os.open(path, os.O_RDONLY)
    try:
        linux.elf(fd, str(path))
    except OSError as problem:
        assert (problem.errno, problem.filename) == (errno.ENOEXEC, str(path))
    finally:
        os.close(fd)


def test_a_build_with_sanitizers_finds_nothing(tmp_path: Path) -> None:
    checkout = Path(__file__).parent.parent
    write_access(tmp_path / "tree/mig/config")
    write_access(tmp_path / "tree/gpu0/mig/gi1/access")
    write_access(tmp_path / "tree/gpu0/mig/gi1/ci0/access", "x" * 300)
    os.mkfifo(tmp_path / "fifo")
    sources = [
        str(checkout / f"cffi_src/{name}.c")
        for name in ("native", "bpf", "elf", "live", "lost", "read_files", "nvml")
    ]
    sources.append(str(checkout / "tests/native_driver.c"))
    flags = [
        "-g",
        "-O1",
        "-std=gnu11",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-Werror",
    ]
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes", "-Wstrict-prototypes", "-Wformat=2"]
    driver = str(tmp_path / "driver")
    include = f"-I{checkout / 'cffi_src'}"
    subprocess.run(["gcc", *flags, *warnings, include, "-o", driver, *sources, "-lrt", "-ldl"], check=True)
    fakenode.build(tmp_path / "node", "seed")
    (library,) = (tmp_path / "node/driver").rglob("libnvidia-ml.so.1")

    done = subprocess.run(
        [driver, str(tmp_path / "tree"), str(tmp_path / "fifo"), str(library)], capture_output=True, text=True
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"stat 0 1:3 {errno.ENOENT}",
        f"capabilities 3 3 {-errno.ENOENT}",
        f"files 1 {errno.ETIMEDOUT} 0 1",
        f"too many {-errno.E2BIG}",
        "elf 0 64 ",
        f"elf {-errno.ENOEXEC}",
        f"give {-errno.EBADF} 2",
        f"root 1 {-errno.ENOENT}",
        f"bpf {-errno.EBADF} {-errno.EBADF} {-errno.EBADFD} {-errno.EBADF}",
        "nvml 8 0 7",
        "nvml 0 1",
    ]
    assert done.returncode == 0
