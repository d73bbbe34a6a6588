"""`gpushim config`: the settings in effect, and the command line around it."""

import codecs
import json
import subprocess

import pytest

from gpushim import __version__
from tests.conftest import BIN, Shim


def test_show_names_value_and_source(shim: Shim) -> None:
    shim.add('[gpushim.policy]\nmig-monitor = "allow"')

    done = shim.ctl("config", "show")
    line = next(line for line in done.stdout.splitlines() if "gpushim.policy.mig-monitor " in line)

    assert done.returncode == 0
    assert line.split()[:2] == ["gpushim.policy.mig-monitor", '"allow"']
    assert f"{shim.toml}:" in line


def test_show_json(shim: Shim) -> None:
    shim.add('[gpushim]\nzzz = "x"')

    report = json.loads(shim.ctl("config", "show", "--json").stdout)

    assert (report["schema"], report["file"]) == (1, str(shim.toml))
    assert report["settings"]["gpushim.log"] == {"value": "", "source": "default"}
    assert report["warnings"][0].endswith("gpushim.zzz: unknown key")


def test_show_changed_only(shim: Shim) -> None:
    report = json.loads(shim.ctl("config", "show", "--json", "--changed").stdout)

    assert sorted(report["settings"]) == [
        "gpushim.roots.dev",
        "gpushim.roots.driver",
        "gpushim.roots.proc",
        "gpushim.roots.sys",
        "nvidia-container-runtime.runtimes",
    ]


def test_a_broken_file_is_told(shim: Shim) -> None:
    shim.toml.write_text("[gpushim]\nlog = 1\n")

    done = shim.ctl("config", "show")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"gpushim: GS0508: {shim.toml}:2: gpushim.log: must be a string, not 1\n"


def test_usage_is_exit_status_2_and_help_is_everywhere(shim: Shim) -> None:
    for words in (["nonsense"], ["config", "nonsense"], ["explain"], ["node", "--nonsense"]):
        assert shim.ctl(*words).returncode == 2
    for words in ([], ["config"], ["config", "show"], ["explain"], ["node"]):
        done = shim.ctl(*words, "--help")
        assert (done.returncode, done.stdout[:6]) == (0, "Usage:")
    assert shim.ctl("--version").stdout == f"gpushim, version {__version__}\n"


def test_a_reader_that_leaves_early_is_no_error(shim: Shim) -> None:
    script = f"{BIN}/gpushim config show | head -1"

    done = subprocess.run(["sh", "-c", script], env=shim.env, capture_output=True, text=True)

    assert done.stderr == ""


# ---- changing it ----

TEXT = """\
# The node's own.
accept-nvidia-visible-devices-as-volume-mounts = true   # for the device plugin

[gpushim.policy]   # who may
mig-monitor = 'allow'
"""


def test_set_keeps_everything_else(shim: Shim) -> None:
    shim.toml.write_text(TEXT)
    shim.toml.chmod(0o640)

    for key, value in (
        ("accept-nvidia-visible-devices-as-volume-mounts", "false"),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged", "true"),
        ("gpushim.policy.mig-config", "deny"),
        ("gpushim.policy.on-refusal.mig-monitor", "ignore"),
        ("gpushim.log", "syslog"),
        ("gpushim.driver-timeout", "5"),
        ("gpushim.annotation-prefixes", '["a/", "b/"]'),
        ("nvidia-container-cli.root", "/run/nvidia/driver"),
        ("gpushim.runtimes.nvidia.engine", "containerd"),
    ):
        done = shim.ctl("config", "set", key, value)
        assert (done.returncode, done.stderr) == (0, ""), key

    text = shim.toml.read_text()
    for kept in (
        "# The node's own.\n",
        "= false   # for the device plugin\n",
        "[gpushim.policy]   # who may\nmig-monitor = 'allow'\n",
    ):
        assert kept in text
    assert shim.toml.stat().st_mode & 0o777 == 0o640
    values = {
        key: one["value"]
        for key, one in json.loads(shim.ctl("config", "show", "--json").stdout)["settings"].items()
    }
    assert values["gpushim.policy.on-refusal.mig-monitor"] == "ignore"
    assert values["gpushim.annotation-prefixes"] == ["a/", "b/"]
    assert values["gpushim.roots.dev"] == "/run/nvidia/driver"
    assert values["gpushim.runtimes"] == {"nvidia": {"engine": "containerd"}}
    assert shim.ctl("config", "check").returncode == 0


def test_unset_gives_the_default_back(shim: Shim) -> None:
    shim.toml.write_text(TEXT)

    assert shim.ctl("config", "unset", "gpushim.policy.mig-monitor").returncode == 0
    assert shim.toml.read_text() == TEXT.replace("mig-monitor = 'allow'\n", "")
    again = shim.ctl("config", "unset", "gpushim.policy.mig-monitor")
    assert again.returncode == 1
    assert again.stderr.startswith(f"gpushim: GS0805: {shim.toml}: has no key 'gpushim.policy.mig-monitor'")


def test_what_would_not_be_accepted_is_not_written(shim: Shim) -> None:
    shim.toml.write_text(TEXT)

    for key, value, error in (
        ("gpushim.policy.mig-monitor", "maybe", "GS0806"),
        ("gpushim.driver-timeout", "soon", "GS0806"),
        ("gpushim.nonsense", "1", "GS0804"),
        ("gpushim.policy.rules", "[]", "GS0804"),
    ):
        done = shim.ctl("config", "set", key, value)
        assert done.returncode == 1
        assert done.stderr.startswith(f"gpushim: {error}: "), done.stderr
    assert shim.toml.read_text() == TEXT


def test_a_link_is_edited_through_and_a_missing_file_is_made(shim: Shim) -> None:
    real = shim.directory / "real.toml"
    shim.toml.rename(real)
    shim.toml.symlink_to(real)

    assert shim.ctl("config", "set", "gpushim.log", "syslog").returncode == 0
    assert shim.toml.is_symlink() and 'log = "syslog"' in real.read_text()
    new = shim.directory / "new/config.toml"
    assert shim.ctl("config", "set", "--config", str(new), "disable-require", "true").returncode == 0
    assert new.read_text() == "disable-require = true\n"


def test_a_broken_file_is_not_touched(shim: Shim) -> None:
    shim.toml.write_text("[broken")

    done = shim.ctl("config", "set", "gpushim.log", "syslog")

    assert done.returncode == 1
    assert done.stderr.startswith("gpushim: GS0505: ")
    assert shim.toml.read_text() == "[broken"


def test_check_tells_of_keys_that_mean_nothing(shim: Shim) -> None:
    assert shim.ctl("config", "check").stdout == f"{shim.toml}: is fine\n"
    other = shim.directory / "other.toml"
    other.write_text("[gpushim.policy]\nmig-monitr = 'allow'\n")

    done = shim.ctl("config", "check", str(other))

    assert done.returncode == 1
    assert done.stdout == (
        f"warning: {other}:2: gpushim.policy.mig-monitr: unknown key, is gpushim.policy.mig-monitor meant?\n"
    )


def test_shells_can_complete(shim: Shim) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_GPUSHIM_COMPLETE" in shim.ctl("completion", shell).stdout
    shim.env |= {"_GPUSHIM_COMPLETE": "bash_complete", "COMP_WORDS": "gpushim no", "COMP_CWORD": "1"}
    assert shim.ctl().stdout == "plain,node\n"


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["plain", "with-a-byte-order-mark"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_only_the_line_that_is_set_changes(shim: Shim, mark: bytes, end: bytes) -> None:
    lines = [b"# ours", b"[gpushim]", b'log = ""  # off', b'engine = "crio"', b"", b"[features]", b""]
    shim.toml.write_bytes(mark + end.join(lines))

    done = shim.ctl("config", "set", "gpushim.engine", "containerd")

    assert (done.returncode, done.stderr) == (0, "")
    lines[3] = b'engine = "containerd"'
    assert shim.toml.read_bytes() == mark + end.join(lines)
    assert shim.ctl("config", "unset", "gpushim.engine").returncode == 0
    del lines[3]
    assert shim.toml.read_bytes() == mark + end.join(lines)


def test_lines_of_both_kinds_stay_as_they_are(shim: Shim) -> None:
    shim.toml.write_bytes(b'[gpushim]\r\nlog = ""\nengine = "crio"\r\n')

    assert shim.ctl("config", "set", "gpushim.engine", "containerd").returncode == 0

    assert shim.toml.read_bytes() == b'[gpushim]\r\nlog = ""\nengine = "containerd"\r\n'


def test_a_directory_in_the_place_of_the_file_is_told(shim: Shim) -> None:
    shim.toml.unlink()
    shim.toml.mkdir()

    done = shim.ctl("config", "set", "gpushim.engine", "crio")

    assert done.returncode == 1
    assert done.stderr.startswith(f"gpushim: GS0502: {shim.toml}: is not a regular file")
    assert list(shim.toml.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        pytest.param(
            '[gpushim.runtimes.nvidia]\nruntimes = ["runc"]\n',
            ("set", "gpushim.runtimes.nvidia.runtimes.x", "1"),
            "GS0808: {path}: gpushim.runtimes.nvidia.runtimes.x: runtimes is no table",
            id="set-below-a-list",
        ),
        pytest.param(
            "disable-require = true\n",
            ("unset", "disable-require.x"),
            "GS0805: {path}: has no key 'disable-require.x'\nhint: gpushim config show --changed",
            id="unset-below-a-value",
        ),
        pytest.param(
            "disable-require = true\n",
            ("unset", "disable-require.x.y"),
            "GS0805: {path}: has no key 'disable-require.x.y'\nhint: gpushim config show --changed",
            id="unset-far-below-a-value",
        ),
        pytest.param(
            "",
            ("set", "gpushim.log", "a\udcff"),
            "GS0807: gpushim.log: 'a\\udcff' is not UTF-8",
            id="not-utf-8",
        ),
    ],
)
def test_a_key_or_value_that_cannot_be_is_told(
    shim: Shim, text: str, words: tuple[str, ...], told: str
) -> None:
    shim.toml.write_text(text)

    done = shim.ctl("config", *words)

    assert (done.returncode, done.stderr) == (1, f"gpushim: {told.format(path=shim.toml)}\n")
    assert shim.toml.read_text() == text


def test_an_inline_table_takes_another(shim: Shim) -> None:
    shim.toml.write_text('gpushim = {log = ""}  # short\n')

    done = shim.ctl("config", "set", "gpushim.policy.mig-monitor", "allow")

    assert (done.returncode, done.stderr) == (0, "")
    assert shim.toml.read_text() == 'gpushim = {log = "",policy = {mig-monitor = "allow"}}  # short\n'


def test_a_link_that_leads_to_itself_stays(shim: Shim) -> None:
    shim.toml.unlink()
    shim.toml.symlink_to(shim.toml)

    done = shim.ctl("config", "set", "gpushim.engine", "crio")

    told = f"GS0506: {shim.toml}: cannot be read: Too many levels of symbolic links"
    assert (done.returncode, done.stderr) == (1, f"gpushim: {told}\n")
    assert shim.toml.is_symlink()
