"""`gpushim config`: the settings in effect, and the command line around it."""

import json
import subprocess

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
