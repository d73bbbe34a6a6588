"""The launcher (cffi_src): what goes to the low-level runtime at once, what to Python, and what is said when neither can.

Two builds, a static one as installed and one with sanitizers, stand in a directory of their own beside a Python that
only tells how it was called, so that nothing here needs the package or root.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpushim import __version__, argv, settings_file
from gpushim.errors import InvalidCall
from gpushim.settings import Selected, identity

CHECKOUT = Path(__file__).parent.parent
C = CHECKOUT / "cffi_src"
CMAKE = (C / "CMakeLists.txt").read_text()
SOURCES = [C / name for name in re.search(r"GPUSHIM_LAUNCHER (.*)\)", CMAKE)[1].split()]  # type: ignore[index]
WARNINGS = re.findall(r"-W\S+", re.search(r"GPUSHIM_WARNINGS (.*)\)", CMAKE)[1])  # type: ignore[index]
PYTHON = "python9.9"
BUILDS = {
    "static": ["-O2", "-static", "-s"],
    "sanitizers": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
ASKS = '{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}'
PLAIN = '{"process":{"env":["PATH=/bin"]}}'


class Place:
    """A launcher, its Python, a runtime and a bundle in one directory."""

    def __init__(self, directory: Path, launcher: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.launcher = self.bin / "gpushim-runtime"
        shutil.copy(launcher, self.launcher)
        package = directory / f"lib/{PYTHON}/site-packages/gpushim"
        package.mkdir(parents=True)
        (package / "_boot.py").touch()
        self.python = self.bin / PYTHON
        self.runtime = self.program(directory / "runc", 'echo "runtime $*"')
        self.bundle = directory / "bundle"
        self.bundle.mkdir()
        self.config = self.bundle / "config.json"
        self.config.write_text(ASKS)
        self.state = directory / "state"
        self.toml = directory / "config.toml"
        self.toml.write_text("")
        self.env = {
            "PATH": f"{directory}:/usr/bin:/bin",
            "GPUSHIM_STATE": str(self.state),
            "GPUSHIM_CONFIG": str(self.toml),
        }
        self.python_does('echo "python $*"')
        self.compile()

    def program(self, path: Path, body: str) -> Path:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def python_does(self, body: str) -> None:
        """Shift away `-I -S BOOT`, then *body*."""
        self.program(self.python, f"shift 3\n{body}")

    def compile(self, changes: "dict[str, object] | None" = None, *, version: str = __version__) -> Path:
        """Fresh compiled settings, with the runtime as the one candidate."""
        values = settings_file.defaults()
        values["nvidia-container-runtime.runtimes"] = [str(self.runtime)]
        values |= changes or {}
        selected = Selected(str(self.toml), "GPUSHIM_CONFIG")
        data = settings_file.compiled(values, selected.path, identity(selected))
        self.state.mkdir(mode=0o700, exist_ok=True)
        from gpushim import settings

        path = self.state / settings._name(selected)
        path.unlink(missing_ok=True)
        path.write_bytes(data.replace(__version__.encode(), version.encode(), 1))
        path.chmod(0o600)
        return path

    def run(self, *args: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        argv = [str(self.launcher), *args]
        return subprocess.run(
            argv, env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=30, **more
        )

    def goes_to(self, *args: str) -> str:
        """`runtime` or `python`, whichever ran, or what was said."""
        done = self.run(*args)
        return done.stdout.split()[0] if done.stdout else done.stderr


@pytest.fixture(scope="session", params=list(BUILDS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launcher") / "gpushim-runtime"
    defines = [f'-DPYTHON="{PYTHON}"', f'-DVERSION="{__version__}"']
    subprocess.run(
        [
            "gcc",
            "-std=gnu11",
            *BUILDS[request.param],
            *WARNINGS,
            *defines,
            "-o",
            str(path),
            *map(str, SOURCES),
        ],
        check=True,
    )
    return path


@pytest.fixture
def place(built: Path, tmp_path: Path) -> Place:
    return Place(tmp_path, built)


# ---- the command line ----


@pytest.mark.parametrize(
    ("args", "goes"),
    [
        pytest.param("create --bundle B id", "python", id="create"),
        pytest.param("create -b B id", "python", id="short"),
        pytest.param("create -b=B id", "python", id="short-with-equals"),
        pytest.param("create -bB id", "python", id="short-glued"),
        pytest.param("create -bundle B id", "python", id="one-dash"),
        pytest.param("create --bundle=B id", "python", id="equals"),
        pytest.param("create --bund B id", "python", id="prefix"),
        pytest.param("create id --bundle B", "python", id="behind-the-id"),
        pytest.param("create --bundle /none --bundle B id", "python", id="the-last-wins"),
        pytest.param("run -d --bundle B create", "python", id="run-a-container-named-create"),
        pytest.param("restore --image-path x --bundle B id", "python", id="restore"),
        pytest.param("--log create create --bundle B id", "python", id="log-named-create"),
        pytest.param("--log=/x --log-format json --root /r --systemd-cgroup create --bundle B id", "python", id="global-options"),
        pytest.param("--debug=true create --bundle B id", "python", id="flag-with-value"),
        pytest.param("-log /x create --bundle B id", "python", id="global-option-with-one-dash"),
        pytest.param("--cgroup-manager systemd --log-level debug create --bundle B id", "python", id="of-crun"),
        pytest.param("create --config other.json --bundle B id", "python", id="another-config"),
        pytest.param("create -f other.json --bundle B id", "python", id="another-config-short"),
        pytest.param("create --bundle= id", "python", id="empty-bundle"),
        pytest.param("create --preserve-fds 3 --pidfd-socket s --pid-file p --console-socket c --bundle B id", "python", id="options-with-values"),
        pytest.param("create --pid-file --bundle B id", "python", id="a-value-that-looks-like-an-option"),
        pytest.param("create --new-option --bundle B id", "python", id="unknown-option"),
        pytest.param("--new-option create --bundle B id", "python", id="unknown-global-option"),
        pytest.param("--new-option value create --bundle B id", "python", id="unknown-global-option-with-value"),
        pytest.param(f"--{'n' * 64} value create --bundle B id", "python", id="long-unknown-global-option-with-value"),
        pytest.param("create --bundle", "python", id="value-missing"),
        pytest.param("create --bundle /none id", "python", id="bundle-missing"),
        pytest.param("create id", "python", id="no-config-in-the-directory"),
        pytest.param("-- create --bundle B", "python", id="end-of-options"),
        pytest.param("create -- --help", "python", id="end-of-options-of-the-command"),
        pytest.param("create --help", "runtime", id="help-of-a-command"),
        pytest.param("create -h", "runtime", id="help-of-a-command-short"),
        pytest.param("create --bundle B id --help", "runtime", id="help-behind-the-id"),
        pytest.param("create --pid-file --help --bundle B id", "python", id="help-as-a-value"),
        pytest.param("create --new-option --help --bundle B id", "python", id="help-may-be-the-value-of-a-new-option"),
        pytest.param("--new-option state create --help", "python", id="help-where-the-command-is-not-certain"),
        pytest.param("create --help=false --bundle B id", "python", id="no-help"),
        pytest.param("delete create", "runtime", id="delete-a-container-named-create"),
        pytest.param("--root create state x", "runtime", id="root-named-create"),
        pytest.param("state --root create", "runtime", id="state"),
        pytest.param("kill id 9", "runtime", id="kill"),
        pytest.param("exec id create", "runtime", id="exec-a-program-named-create"),
        pytest.param("--help", "runtime", id="help"),
        pytest.param("", "runtime", id="nothing"),
        pytest.param("--", "runtime", id="nothing-but-the-end-of-options"),
        pytest.param("--log", "runtime", id="a-global-value-missing"),
        pytest.param("create-all", "runtime", id="another-command"),
    ],
)  # fmt: skip
def test_command_lines(place: Place, args: str, goes: str) -> None:
    (place.bundle / "other.json").write_text(PLAIN)
    words = [word.replace("B", str(place.bundle)) if "none" not in word else word for word in args.split()]

    assert place.goes_to(*words) == goes


def test_a_plain_container_goes_to_the_runtime_with_the_same_words(place: Place) -> None:
    place.config.write_text(PLAIN)
    words = ["--log", "/dev/null", "create", "--bundle", str(place.bundle), "an id"]

    assert place.run(*words).stdout == f"runtime {' '.join(words)}\n"


def test_python_is_told_who_is_called_and_who_runs(place: Place) -> None:
    words = ["create", "--bundle", str(place.bundle), "id"]
    link = place.bin / "nvidia"
    link.symlink_to(place.launcher)

    assert place.run(*words).stdout == f"python shim gpushim-runtime {place.runtime} 0 {' '.join(words)}\n"
    done = subprocess.run([str(link), *words], env=place.env, capture_output=True, text=True)
    assert done.stdout == f"python shim nvidia {place.runtime} 0 {' '.join(words)}\n"


def test_python_starts_isolated(place: Place) -> None:
    place.program(place.python, 'echo "$1 $2 $3"')

    out = place.run("create", "--bundle", str(place.bundle), "id").stdout

    assert out == f"-I -S {place.bin}/../lib/{PYTHON}/site-packages/gpushim/_boot.py\n"


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version_is_ours_then_the_runtimes(place: Place, flag: str) -> None:
    assert place.run(flag).stdout == f"gpushim-runtime version {__version__}\nruntime {flag}\n"
    assert place.goes_to("exec", flag) == "runtime"


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_the_tables_know_the_options_of_the_runtimes_at_hand(runtime: str) -> None:
    if shutil.which(runtime) is None:
        if os.environ.get("CI"):
            pytest.fail(f"missing: {runtime}")
        pytest.skip(f"missing: {runtime}")
    for command, values, flags in (
        ([], argv.GLOBAL_VALUES, argv.GLOBAL_FLAGS),
        *[([name], argv.COMMAND_VALUES, argv.COMMAND_FLAGS) for name in ("create", "run", "restore")],
    ):
        text = subprocess.run([runtime, *command, "--help"], capture_output=True, text=True).stdout
        for name, valued in re.findall(r"--([a-z-]+)((?:=| value| )[A-Za-z]*)", text):
            takes = valued.startswith("=") or valued == " value"
            assert name in (values if takes else flags), f"{runtime} {command} --{name}"


def test_the_tables_in_c_are_those_in_python() -> None:
    text = (C / "command_line.c").read_text()
    for table, names in (
        ("global_values", argv.GLOBAL_VALUES),
        ("global_flags", (*argv.GLOBAL_FLAGS, "h", "v")),
        ("command_values", (*argv.COMMAND_VALUES, *argv.SHORT)),
        ("command_flags", (*argv.COMMAND_FLAGS, "d", "h")),
    ):
        body = re.search(rf"{table}\[\] = \{{(.*?)\}};", text, re.DOTALL)
        assert body is not None
        assert sorted(re.findall(r'"([^"]+)"', body[1])) == sorted(names), table


# ---- what asks ----


def with_entry(entry: str) -> str:
    return '{"process":{"env":["PATH=/bin",' + entry + "]}}"


@pytest.mark.parametrize(
    ("text", "goes"),
    [
        pytest.param(PLAIN, "runtime", id="plain"),
        pytest.param(with_entry('"NVIDIA_VISIBLE_DEVICES=0"'), "python", id="variable"),
        pytest.param(with_entry('"CUDA_VERSION=9"'), "python", id="legacy-image"),
        pytest.param(with_entry('"\\u004eVIDIA_VISIBLE_DEVICES=0"'), "python", id="escaped-letter"),
        pytest.param(with_entry('"NVIDIA\\u005fVISIBLE_DEVICES=0"'), "python", id="escaped-underscore"),
        pytest.param(with_entry('"NVIDIA_VISIBLE_\\u0044EVICES=0"'), "python", id="escaped-in-the-middle"),
        pytest.param(with_entry('"A=\\u003c\\u003e\\u0026 \\u2028 \\n\\t \\"x\\" \\\\"'), "runtime", id="what-engines-escape"),
        pytest.param(with_entry('"A=\\\\u004eVIDIA"'), "runtime", id="an-escaped-backslash"),
        pytest.param(with_entry('"A=\\\\\\u004eVIDIA"'), "python", id="an-escape-behind-a-backslash"),
        pytest.param(with_entry('"A=\\/x"'), "python", id="escaped-slash"),
        pytest.param(with_entry('"A=\\u00"'), "python", id="cut-escape"),
        pytest.param(PLAIN[:-1] + '"\\u0', "python", id="cut-file"),
        pytest.param('{"hooks":{"prestart":[{"path":"/usr/bin/nvidia-container-runtime-hook"}]}}', "python", id="hook"),
        pytest.param('{"annotations":{"dev.gpushim/injected":"x"}}', "python", id="annotation"),
        pytest.param('{"mounts":[{"destination":"/var/run/nvidia-container-devices/all"}]}', "python", id="mount-list"),
        pytest.param("", "python", id="empty"),
    ],
)  # fmt: skip
def test_what_asks(place: Place, text: str, goes: str) -> None:
    place.config.write_text(text)

    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == goes


@pytest.mark.parametrize("trigger", ['"NVIDIA_VISIBLE_DEVICES=0"', '"\\u004eVIDIA_VISIBLE_DEVICES=0"'])
def test_a_trigger_is_found_wherever_it_stands(place: Place, trigger: str) -> None:
    """The file is read in windows of 64 KiB: the trigger is put across each of their borders."""
    for offset in [65536 - n for n in range(-8, 40, 3)] + [2 * 65536 - 4, 4096, 69632 - 3, 300_000]:
        head = '{"process":{"env":["A='
        text = head + "x" * (offset - len(head)) + '",' + trigger + "]}}"
        place.config.write_text(text)
        assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python", offset
    place.config.write_text('{"process":{"env":["A=' + "x" * 300_000 + '"]}}')
    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "runtime"


def test_runs_of_backslashes_hide_nothing(place: Place) -> None:
    for count in (65510, 65511, 65534, 65535, 65536, 65537, 70000, 70001):
        text = '{"process":{"env":["' + "\\" * (2 * (count // 2)) + '\\u004eVIDIA_VISIBLE_DEVICES=0"]}}'
        place.config.write_text(text)
        assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python", count


def test_configured_triggers_count(place: Place) -> None:
    place.config.write_text(with_entry('"DOCKER_RESOURCE_GPU=0"'))
    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "runtime"

    place.compile({"swarm-resource": "DOCKER_RESOURCE_GPU", "gpushim.annotation-prefixes": ["x/"]})

    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"


@pytest.mark.parametrize("prefix", ["a&b/", "\u00fc/", "it's/", "<x>/"])
def test_a_configured_trigger_of_odd_characters_is_found_however_engines_escape_it(
    place: Place, prefix: str
) -> None:
    place.compile({"gpushim.annotation-prefixes": [prefix]})
    escaped = "".join(c if c.isascii() and (c.isalnum() or c == "/") else f"\\u{ord(c):04x}" for c in prefix)

    for spelt in (prefix, escaped):
        place.config.write_text(f'{{"annotations":{{"{spelt}gpu":"0"}}}}')
        assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"
    place.config.write_text(PLAIN)
    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "runtime"


def test_the_end_of_options_hides_no_bundle(place: Place) -> None:
    """Both runtimes read `-- create --bundle B` as `create --bundle B`."""
    (place.directory / "config.json").write_text(PLAIN)

    assert place.goes_to("--", "create", "--bundle", str(place.bundle), "id") == "python"


def test_what_is_no_regular_file_goes_to_python(place: Place) -> None:
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        if place.config.is_dir():
            place.config.rmdir()
        else:
            place.config.unlink()
        make(place.config)
        assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"


texts = st.recursive(
    st.text(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
_TABLES = re.findall(r"(?:requests|leftovers)\[\] = \{(.*?)\}", (C / "trigger.c").read_text(), re.DOTALL)
TRIGGERS = [word for table in _TABLES for word in re.findall(r'"([^"]+)"', table)]
assert len(TRIGGERS) == 7


@hypothesis_settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(tree=texts, trigger=st.sampled_from(TRIGGERS), data=st.data())
def test_a_trigger_is_found_however_it_is_escaped(place: Place, tree: object, trigger: str, data: st.DataObject) -> None:  # fmt: skip
    escaped = "".join(f"\\u{ord(c):04x}" if data.draw(st.booleans()) else c for c in trigger)
    text = json.dumps([tree, "TRIGGER"]).replace("TRIGGER", escaped)
    assert trigger in json.loads(text)[1]
    place.config.write_text(text)

    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"


words = st.sampled_from(
    [f"--{name}" for name in (*argv.GLOBAL_VALUES, *argv.COMMAND_VALUES, *argv.GLOBAL_FLAGS, *argv.COMMAND_FLAGS)]
    + ["create", "run", "restore", "state", "BUNDLE", "PLAIN", "--bundle", "-b", "--bundle=BUNDLE", "-b=BUNDLE", "-bBUNDLE", "--bundle=", "-dbBUNDLE", "-f", "--", "-d", "-h", "x"]
)  # fmt: skip


@hypothesis_settings(
    max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(line=st.lists(words, max_size=7), crun=st.booleans())
def test_no_command_line_slips_past(place: Place, line: list[str], crun: bool) -> None:
    """What goes to the runtime at once is nothing of which Python would edit a bundle that asks."""
    plain = place.directory / "plain"
    plain.mkdir(exist_ok=True)
    (plain / "config.json").write_text(PLAIN)
    line = [word.replace("BUNDLE", str(place.bundle)).replace("PLAIN", str(plain)) for word in line]

    if place.goes_to(*line) == "runtime":
        try:
            call = argv.parse(line, "/usr/bin/crun" if crun else "/usr/sbin/runc")
        except InvalidCall:
            return  # the runtime itself says so
        config = place.directory / ("" if "/" in call.config else call.bundle) / call.config
        assert call.command not in argv.MAKERS or config.read_text() == PLAIN


# ---- settings and state ----


def spoil_mode(path: Path) -> None:
    path.chmod(0o666)


def spoil_directory(path: Path) -> None:
    path.parent.chmod(0o777)


def spoil_by_a_link(path: Path) -> None:
    path.rename(path.parent / "real")
    path.symlink_to(path.parent / "real")


def spoil_by_cutting(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def spoil_by_size(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x=" + b"y" * 70_000 + b"\0")


def spoil_by_nonsense(path: Path) -> None:
    path.write_bytes(b"\0" * 100)


def spoil_by_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


SPOILS: list[Callable[[Path], None]] = [
    spoil_mode,
    spoil_directory,
    spoil_by_a_link,
    spoil_by_cutting,
    spoil_by_size,
    spoil_by_nonsense,
    spoil_by_a_fifo,
]


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_settings_that_are_not_to_be_trusted_are_not(place: Place, spoil: Callable[[Path], None]) -> None:
    path = place.compile()
    evil = place.program(place.directory / "evil", "echo evil")
    path = place.compile({"nvidia-container-runtime.runtimes": [str(evil)]})
    spoil(path)
    place.config.write_text(PLAIN)

    # Python is asked to compile and then, as the settings stay what they are, to decide.
    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"
    assert place.goes_to("state", "id") == "runtime"  # by the built-in candidates


def test_settings_of_another_user_are_not_read(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    path = place.compile()
    os.chown(path, 1234, 1234)
    place.config.write_text(PLAIN)

    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"


@pytest.mark.parametrize("change", ["edit", "touch", "remove", "version"])
def test_stale_settings_are_compiled_anew(place: Place, change: str) -> None:
    place.config.write_text(PLAIN)
    place.python_does(f'[ "$1" = compile ] && echo ran > {place.directory}/compiled; echo "python $*"')
    if change == "edit":
        place.toml.write_text("[gpushim]\n")
    elif change == "touch":
        os.utime(place.toml, ns=(1, 1))
    elif change == "remove":
        shutil.rmtree(place.state)
    else:
        place.compile(version="0.0.1")

    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"
    assert (place.directory / "compiled").exists()


def test_what_makes_no_container_never_waits_for_python(place: Place) -> None:
    place.toml.write_text("[gpushim]\n")
    place.python_does("sleep 100")

    assert place.goes_to("delete", "id") == "runtime"


def test_stale_settings_still_name_the_runtime(place: Place) -> None:
    other = place.program(place.directory / "other-runtime", "echo other")
    place.compile({"nvidia-container-runtime.runtimes": [str(other)]})
    place.toml.write_text("[gpushim]\n")

    assert place.goes_to("delete", "id") == "other"


def test_settings_of_another_version_still_name_the_runtime(place: Place) -> None:
    """Between an upgrade and the next create the containers that run are still those of the runtime compiled last."""
    other = place.program(place.directory / "other-runtime", "echo other")
    place.compile({"nvidia-container-runtime.runtimes": [str(other)]}, version="0.0.1")

    assert place.goes_to("delete", "id") == "other"


def test_settings_of_any_length_name_the_runtime(place: Place) -> None:
    """Python's part of the compiled settings may be longer than the launcher reads."""
    own = place.program(place.directory / "own", 'echo "own $*"')
    place.config.write_text(PLAIN)
    sizes = []
    for rules in (0, 1000, 4000):
        changes: dict[str, object] = {"nvidia-container-runtime.runtimes": [str(own)]}
        changes["gpushim.policy.rules"] = [{"uid": n, "mig-monitor": "allow"} for n in range(rules)]
        sizes.append(place.compile(changes).stat().st_size)
        assert [place.goes_to("state", "id"), place.goes_to("create", "-b", str(place.bundle), "id")] == [
            "own"
        ] * 2
    assert sizes[0] < 1 << 16 < sizes[2]


def test_settings_that_end_within_a_record_are_not_used(place: Place) -> None:
    """Where even the candidates are more than the launcher reads, it cannot know them all."""
    own = place.program(place.directory / "own", 'echo "own $*"')
    place.compile({"nvidia-container-runtime.runtimes": [str(own), "x" * 70_000]})

    assert place.goes_to("state", "id") == "runtime"


def test_a_handler_has_candidates_of_its_own(place: Place) -> None:
    other = place.program(place.directory / "other-runtime", "echo other")
    place.compile({"gpushim.runtimes": {"special": {"runtimes": [str(other)]}}})
    link = place.bin / "special"
    link.symlink_to(place.launcher)

    assert place.goes_to("state", "id") == "runtime"
    assert (
        subprocess.run([str(link), "state"], env=place.env, capture_output=True, text=True).stdout
        == "other\n"
    )


def test_two_named_configs_do_not_share_settings(place: Place) -> None:
    place.config.write_text(PLAIN)
    place.env["GPUSHIM_CONFIG"] = str(place.directory / "another.toml")
    (place.directory / "another.toml").write_text("")

    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "python"


# ---- what is broken ----


def test_an_interpreter_that_is_gone_fails_only_who_asks(place: Place) -> None:
    place.python.unlink()
    log = place.directory / "log"

    asking = place.run(
        "--log", str(log), "--log-format", "json", "create", "--bundle", str(place.bundle), "id"
    )
    place.config.write_text(PLAIN)

    assert asking.returncode == 1
    assert asking.stderr.startswith(
        f"gpushim: GS0703: {place.python}: does not start, so that a container which asks"
    )
    assert json.loads(log.read_text())["msg"] + "\n" == asking.stderr
    for command in (["create", "--bundle", str(place.bundle), "id"], ["kill", "id"], ["delete", "id"]):
        assert place.goes_to(*command) == "runtime"


@pytest.mark.parametrize("body", ["exit 1", "exit 127", "kill -9 $$"])
def test_an_interpreter_that_dies_fails_only_who_asks_where_settings_are_stale(
    place: Place, body: str
) -> None:
    place.program(place.python, body)
    place.toml.write_text("[gpushim]\n")

    asking = place.run("create", "--bundle", str(place.bundle), "id")
    place.config.write_text(PLAIN)

    assert asking.returncode == 1
    assert asking.stderr.startswith("gpushim: GS0703: ")
    assert place.goes_to("create", "--bundle", str(place.bundle), "id") == "runtime"


def test_the_program_never_picks_itself(place: Place) -> None:
    link = place.directory / "link"
    link.symlink_to(place.launcher)
    hard = place.directory / "hard"
    os.link(place.launcher, hard)
    candidates = [str(place.launcher), str(link), str(hard)]
    place.compile({"nvidia-container-runtime.runtimes": candidates})

    done = place.run("state", "id")

    assert done.returncode == 1
    assert done.stderr == (
        f"gpushim: GS0701: no low-level runtime: none of {', '.join(candidates)} is a program other than this one; "
        "looked in PATH and in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "hint: install runc or crun, or name one by nvidia-container-runtime.runtimes in config.toml\n"
    )


@pytest.mark.parametrize("kind", ["missing", "directory", "not-executable", "relative"])
def test_a_candidate_that_is_no_program_is_passed_over(place: Place, kind: str) -> None:
    odd = place.directory / "odd"
    if kind == "directory":
        odd.mkdir()
    elif kind == "not-executable":
        odd.write_text("#!/bin/sh\n")
    name = "./runc" if kind == "relative" else str(odd)
    place.compile({"nvidia-container-runtime.runtimes": [name, str(place.runtime)]})

    assert place.goes_to("state", "id") == "runtime"


def test_a_name_is_looked_up_in_absolute_directories_of_path(place: Place) -> None:
    place.compile({"nvidia-container-runtime.runtimes": ["my-runtime"]})
    place.program(place.directory / "my-runtime", "echo found")
    place.env["PATH"] = "."
    assert place.run("state").returncode == 1

    place.env["PATH"] = f".:{place.directory}"

    assert place.goes_to("state") == "found"


def test_errors_reach_a_text_log_too(place: Place) -> None:
    place.compile({"nvidia-container-runtime.runtimes": ['/a "b"\\c']})
    log = place.directory / "log"

    place.run("--log", str(log), "state")

    assert (
        'level=error msg="gpushim: GS0701: no low-level runtime: none of /a \\"b\\"\\\\c is'
        in log.read_text()
    )
    assert log.read_text().count("\n") == 1


@pytest.mark.parametrize("kind", ["journald", "syslog"])
def test_a_log_of_crun_that_is_no_file_makes_none(place: Place, kind: str) -> None:
    place.compile({"nvidia-container-runtime.runtimes": ["/none"]})

    place.run("--log", f"{kind}:id", "state")
    place.run("--log", f"file:{place.directory}/log", "state")

    assert not (place.directory / f"{kind}:id").exists()
    assert "GS0701" in (place.directory / "log").read_text()


def test_words_of_any_length_are_survived(place: Place) -> None:
    long = "x" * 100_000

    for line in (["--" + long], ["create", "--bundle", long, "id"], ["--log", long, "create", "--bundle", long], [long], ["create", "-f", long]):  # fmt: skip
        assert place.run(*line).returncode == 0
    place.env["GPUSHIM_STATE"] = long
    assert place.goes_to("state") == "runtime"
    place.env["PATH"] = long
    assert place.run("state").returncode in (0, 1)


# ---- passing through ----


def test_descriptors_environment_and_status_pass_through(place: Place) -> None:
    read, write = os.pipe()
    place.program(place.runtime, f'echo "$SOME" > /proc/self/fd/{write}; cat; exit 42')
    place.config.write_text(PLAIN)
    place.env["SOME"] = "thing"

    for command in (["create", "--bundle", str(place.bundle), "id"], ["state"]):
        done = place.run(*command, pass_fds=[write], input="typed")
        assert (done.returncode, done.stdout) == (42, "typed")
    assert os.read(read, 100) == b"thing\nthing\n"
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("ignored", "mask"), [([], 0), (["PIPE"], 1), (["XFSZ"], 2), (["PIPE", "XFSZ"], 3)])
def test_python_learns_which_signals_were_ignored(place: Place, ignored: list[str], mask: int) -> None:
    def ignore() -> None:
        for name in ("PIPE", "XFSZ"):
            how = signal.SIG_IGN if name in ignored else signal.SIG_DFL
            signal.signal(getattr(signal, f"SIG{name}"), how)

    done = place.run("create", "--bundle", str(place.bundle), "id", preexec_fn=ignore)

    assert done.stdout.split()[4] == str(mask)


@pytest.mark.parametrize("state", ["stale", "fresh"])
def test_an_engine_that_ignores_its_children_is_no_obstacle(place: Place, state: str) -> None:
    # In Python, since a shell sets SIGCHLD as it likes.
    told = "import signal, sys; sys.argv[4:5] == ['compile'] or print(signal.getsignal(signal.SIGCHLD).name)"
    place.python.write_text(f"#!{sys.executable} -S\n{told}\n")
    if state == "stale":
        place.toml.write_text("[gpushim]\n")

    done = place.run(
        "create",
        "--bundle",
        str(place.bundle),
        "id",
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "SIG_IGN\n", "")


class Hook:
    """The launcher under a hook's name; its Python prints its environment, its directory and what it is given."""

    def __init__(self, place: Place, name: str = "gpushim-hook") -> None:
        self.place = place
        self.program = place.bin / name
        shutil.copy(place.launcher, self.program)
        package = place.directory / f"lib/{PYTHON}/site-packages/gpushim_hooks"
        package.mkdir()
        (package / "_boot.py").touch()
        place.python_does('echo "$*"; pwd; env | sort; cat')

    def run(
        self, *args: str, state: str = "{}", cwd: Path | None = None, **more: Any
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(self.program), *args], input=state, cwd=cwd or "/", capture_output=True, text=True, **more
        )

    def state(self, **more: str) -> str:
        return json.dumps(
            {"id": "x", "pid": 7, "bundle": str(self.place.bundle), **more}, separators=(",", ":")
        )


@pytest.mark.parametrize(
    "name", ["gpushim-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit"]
)
def test_a_hook_starts_python_with_an_environment_of_its_own(place: Place, name: str) -> None:
    hook = Hook(place, name)
    hostile = {
        "LD_LIBRARY_PATH": "/x",
        "PYTHONPATH": "/x",
        "GPUSHIM_STATE": "/x",
        "GPUSHIM_CONFIG": "/x",
        "PATH": "/x",
    }

    done = hook.run(
        "--config", "/c", "--state=/s", "create-runtime", state="the state", cwd=place.bundle, env=hostile
    )

    assert done.stdout.splitlines() == [
        "--config /c --state=/s create-runtime",
        "/",
        "GPUSHIM_CONFIG=/c",
        "GPUSHIM_STATE=/s",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "PWD=/",
        *[line for line in done.stdout.splitlines() if line.startswith(("SHLVL", "_="))],
        "the state",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def hook_options(place: Place) -> list[str]:
    return [f"-config={place.toml}", "--state", str(place.state)]


@pytest.mark.parametrize("stage", ["create-runtime", "prestart"])
def test_a_hook_ends_at_once_for_a_container_that_asks_for_nothing(place: Place, stage: str) -> None:
    hook = Hook(place)
    place.config.write_text(
        '{"hooks":{"createRuntime":[{"path":"/usr/bin/gpushim-hook"}]},"process":{"env":["A=b"]}}'
    )

    done = hook.run(*hook_options(place), stage, state=hook.state(), cwd=place.bundle)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param("asks", id="it-asks"),
        pytest.param("elsewhere", id="the-bundle-is-another-directory"),
        pytest.param("twice", id="an-annotation-names-a-bundle-too"),
        pytest.param("stale", id="the-settings-have-changed"),
        pytest.param("long", id="the-state-is-longer-than-a-megabyte"),
        pytest.param("nul", id="the-state-holds-a-nul"),
        pytest.param("createContainer", id="the-stage-is-another"),
    ],
)
def test_a_hook_asks_python_whenever_it_is_not_sure(place: Place, odd: str) -> None:
    hook = Hook(place)
    place.python_does("wc -c")
    place.config.write_text(ASKS if odd == "asks" else PLAIN)
    state, cwd, stage = hook.state(), place.bundle, "create-runtime"
    if odd == "elsewhere":
        cwd = place.directory / "elsewhere"
        shutil.copytree(place.bundle, cwd)
    elif odd == "twice":
        state = hook.state(note='"bundle":"').replace("\\", "")
    elif odd == "stale":
        place.toml.write_text("# changed")
    elif odd == "long":
        state = hook.state(note="x" * (1 << 20))
    elif odd == "nul":
        state += "\0"
    elif odd == "createContainer":
        stage = "create-container"

    done = hook.run(*hook_options(place), stage, state=state, cwd=cwd)

    kept = min(len(state), 1 << 20)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(kept), "")


def test_a_hook_without_its_python_says_so_where_it_logs(place: Place) -> None:
    hook = Hook(place)
    place.python.unlink()
    log = place.directory / "log"

    done = hook.run("--log", str(log), "create-runtime", state=hook.state())

    assert done.returncode == 1
    assert done.stderr.startswith(f"gpushim: GS0703: {place.python}: does not start")
    assert "GS0703" in log.read_text()


def test_c_is_formatted() -> None:
    tool = Path(sys.executable).parent / "clang-format"
    files = sorted(str(p) for pattern in ("cffi_src/*.[ch]", "tests/**/*.c") for p in CHECKOUT.glob(pattern))
    done = subprocess.run(
        [str(tool), "--dry-run", "-Werror", *files], cwd=CHECKOUT, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
