"""gpushim.settings_file and settings_schema: what config.toml may say, and how a fault is told."""

import os
import sys
import time
from pathlib import Path

import pytest

from gpushim.errors import InvalidSettings
from gpushim.settings_file import RULES, RUNTIMES, defaults, effective
from gpushim.settings_schema import KEYS

CHECKOUT = Path(__file__).parent.parent


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_without_a_file_the_defaults_hold() -> None:
    found = effective("")

    assert found.values == defaults()
    assert set(found.sources.values()) == {"default"}


STOCK = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig.real"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"

[features]
"""


def test_the_toolkits_own_file_is_accepted_as_it_is(toml: Path) -> None:
    toml.write_text(STOCK)

    found = effective(str(toml))

    assert found.warnings == []
    assert found.values == defaults() | {"nvidia-container-cli.ldconfig": "@/sbin/ldconfig.real"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('[gpushim.policy]\nmig-monitor = "allow"\n', id="section"),
        pytest.param('[gpushim]\npolicy.mig-monitor = "allow"\n', id="dotted"),
        pytest.param('gpushim.policy.mig-monitor = "allow"\n', id="dotted-at-the-top"),
        pytest.param('[gpushim]\npolicy = { mig-monitor = "allow" }\n', id="inline-table"),
        pytest.param('[gpushim]\r\n[gpushim.policy]\r\nmig-monitor = "allow"\r\n', id="windows-lines"),
        pytest.param('\ufeff[gpushim.policy]\n"mig-monitor" = "allow"\n', id="byte-order-mark-and-quotes"),
    ],
)
def test_a_key_in_any_spelling(toml: Path, text: str) -> None:
    toml.write_bytes(text.encode())

    found = effective(str(toml))

    assert found.values["gpushim.policy.mig-monitor"] == "allow"
    assert found.sources["gpushim.policy.mig-monitor"].startswith(f"{toml}:")


def test_what_hangs_on_another_key_says_so(toml: Path) -> None:
    toml.write_text(
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
        'supported-driver-capabilities = "all"\n'
        '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n'
        '[gpushim.roots]\ndev = "/"\n'
    )

    found = effective(str(toml))

    assert found.values["gpushim.roots.driver"] == "/run/nvidia/driver"
    assert found.sources["gpushim.roots.driver"] == "nvidia-container-cli.root"
    assert found.values["gpushim.roots.dev"] == "/"
    assert found.values["gpushim.policy.devices-env"] == "sys-admin"
    assert (
        found.values["supported-driver-capabilities"] == "compat32,compute,display,graphics,ngx,utility,video"
    )


def test_an_unknown_key_is_a_warning_with_the_nearest(toml: Path) -> None:
    toml.write_text('[gpushim.policy]\nmig-monitr = "allow"\n[gpushim]\nzzz = 1\n[other]\nx = 1\n')

    found = effective(str(toml))

    assert found.warnings == [
        f"{toml}:2: gpushim.policy.mig-monitr: unknown key, is gpushim.policy.mig-monitor meant?",
        f"{toml}:4: gpushim.zzz: unknown key",
        f"{toml}:5: other: unknown key",
    ]


def test_a_quoted_key_with_dots_is_no_way_to_ours(toml: Path) -> None:
    toml.write_text('[gpushim]\n"policy.mig-monitor" = "allow"\n')

    found = effective(str(toml))

    assert found.values == defaults()
    assert found.warnings == [
        f'{toml}:2: gpushim."policy.mig-monitor": unknown key, is gpushim.policy.mig-monitor meant?'
    ]


def test_csv_is_a_word_like_any_other_outside_of_mode(toml: Path) -> None:
    toml.write_text("swarm-resource = 'csv'\n")

    assert effective(str(toml)).values["swarm-resource"] == "csv"


def test_a_file_of_something_else_costs_no_time_by_the_square(toml: Path) -> None:
    toml.write_text("".join([f"key{n} = 1\n" for n in range(20000)]))
    started = time.monotonic()

    found = effective(str(toml))

    assert len(found.warnings) == 20000
    assert time.monotonic() - started < 10  # 650 s when each key looks for its line


def test_legacy_is_as_auto_with_a_warning(toml: Path) -> None:
    toml.write_text('[nvidia-container-runtime]\nmode = "legacy"\n')

    assert effective(str(toml)).warnings == [
        f"{toml}:2: nvidia-container-runtime.mode: 'legacy' behaves as 'auto'"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[gpushim\n", "GS0505: {toml}:1: ", id="syntax"),
        pytest.param("a = 1\nb = \n", "GS0505: {toml}:2: ", id="value-missing"),
        pytest.param("[gpushim]\nlog = 'a'\nlog = 'b'\n", "GS0505: {toml}", id="key-twice"),
        pytest.param("[gpushim]\nlog = \"a\n", "GS0505: {toml}:2: ", id="string-without-end"),
        pytest.param("[gpushim.runtimes.a]\n[gpushim.runtimes.b]\nengine = 'x'\n", "GS0509: {toml}:3: gpushim.runtimes.b.engine: must be one of", id="second-runtime"),
        pytest.param("[gpushim]\nengine = '" + "x" * 10000 + "'\n", "GS0509: {toml}:2: gpushim.engine: must be one of '', 'containerd', 'crio', not 'xx", id="a-long-value"),
        pytest.param("[gpushim]\nlog = 1\n", "GS0508: {toml}:2: gpushim.log: must be a string, not 1", id="wrong-type"),
        pytest.param("disable-require = 'yes'\n", "GS0508: {toml}:1: disable-require: must be true or false, not 'yes'", id="no-boolean"),
        pytest.param("[gpushim]\n\n\nannotation-prefixes = ['a', 1]\n", "GS0508: {toml}:4: gpushim.annotation-prefixes: must be a list of strings, not ['a', 1]", id="list-of-something"),
        pytest.param("[gpushim]\ndriver-timeout = true\n", "GS0508: {toml}:2: gpushim.driver-timeout: must be a number, not True", id="true-is-no-number"),
        pytest.param("[gpushim]\ndriver-timeout = 0\n", "GS0511: {toml}:2: gpushim.driver-timeout: must be above 0 and below 3600, not 0", id="no-time"),
        pytest.param("[gpushim]\ndriver-timeout = nan\n", "GS0511: {toml}:2: gpushim.driver-timeout: must be above 0 and below 3600, not nan", id="nan"),
        pytest.param("[gpushim.policy]\nmig-config = 'maybe'\n", "GS0509: {toml}:2: gpushim.policy.mig-config: must be one of 'sys-admin', 'allow', 'deny', not 'maybe'", id="unknown-answer"),
        pytest.param("[gpushim]\npolicy = 'allow'\n", "GS0507: {toml}:2: gpushim.policy: is a table, not 'allow'", id="value-for-a-table"),
        pytest.param("[gpushim.log]\nx = 1\n", "GS0508: {toml}:1: gpushim.log: must be a string, not {{'x': 1}}", id="table-for-a-value"),
        pytest.param("[gpushim]\nlog = \"a\\u0000b\"\n", "GS0510: {toml}:2: gpushim.log: holds a NUL character", id="nul"),
        pytest.param("[gpushim.roots]\nproc = 'proc'\n", "GS0513: {toml}:2: gpushim.roots.proc: must be an absolute path, not 'proc'", id="relative-root"),
        pytest.param("supported-driver-capabilities = 'compute,cuda'\n", "GS0514: {toml}:1: supported-driver-capabilities: unknown capability 'cuda'", id="unknown-capability"),
        pytest.param("[nvidia-container-runtime]\nmode = 'csv'\n", "GS0512: {toml}:2: nvidia-container-runtime.mode: 'csv' (Tegra) is not supported\nhint: use 'auto'", id="csv"),
        pytest.param("[gpushim.policy]\nrules = 1\n", "GS0515: {toml}:2: gpushim.policy.rules: is a list of tables", id="rules-no-list"),
        pytest.param("[[gpushim.policy.rules]]\nuid = 1\n", "GS0516: {toml}:1: gpushim.policy.rules[0]: names no kind", id="rule-decides-nothing"),
        pytest.param("[[gpushim.policy.rules]]\nmig-monitor = 'allow'\n[[gpushim.policy.rules]]\nmig-monitor = 1\n", "GS0517: {toml}:4: gpushim.policy.rules[1].mig-monitor: must be one of", id="rule-with-an-unknown-answer"),
        pytest.param("[[gpushim.policy.rules]]\nuid = 'root'\nmig-monitor = 'allow'\n", "GS0518: {toml}:2: gpushim.policy.rules[0].uid: must be a uid", id="rule-uid"),
        pytest.param("[[gpushim.policy.rules]]\nuser-namespace = 1\nmig-monitor = 'allow'\n", "GS0519: {toml}:2: gpushim.policy.rules[0].user-namespace: must be true or false", id="rule-user-namespace"),
        pytest.param("[[gpushim.policy.rules]]\nannotation = 'a'\nmig-monitor = 'allow'\n", "GS0520: {toml}:2: gpushim.policy.rules[0].annotation: is a table of strings", id="rule-annotation"),
        pytest.param("[[gpushim.policy.rules]]\nnamespace = 'a'\nmig-monitor = 'allow'\n", "GS0521: {toml}:2: gpushim.policy.rules[0].namespace: is nothing a rule can match", id="rule-unknown"),
        pytest.param("[[gpushim.policy.rules]]\nannotation.a = 'b'\nmig-monitor = 'allow'\n", "GS0525: {toml}:2: gpushim.policy.rules[0].annotation: no engine is named", id="rule-annotation-without-engine"),
        pytest.param("[gpushim]\nengine = 'containerd'\n[[gpushim.policy.rules]]\nannotation.a = 'b'\nmig-monitor = 'allow'\n", "GS0526: {toml}:4: gpushim.policy.rules[0].annotation: 'a' is not one that the engine itself sets", id="rule-annotation-of-somebody"),
        pytest.param("[gpushim]\nruntimes = []\n", "GS0522: {toml}:2: gpushim.runtimes: is a table", id="runtimes-no-table"),
        pytest.param("[gpushim.runtimes.x]\nfoo = 1\n", "GS0523: {toml}:1: gpushim.runtimes.x: is a table that holds", id="runtimes-unknown"),
        pytest.param("[gpushim.runtimes.'a=b']\nruntimes = []\n", "GS0524: {toml}:1: gpushim.runtimes.a=b: is no name", id="runtimes-name"),
        pytest.param("[gpushim.runtimes.x]\nruntimes = 'runc'\n", "GS0508: {toml}:2: gpushim.runtimes.x.runtimes: must be a list", id="runtimes-type"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_file_line_and_key(toml: Path, text: str, message: str) -> None:
    toml.write_text(text)

    with pytest.raises(InvalidSettings) as raised:
        effective(str(toml))

    assert str(raised.value).startswith(message.format(toml=toml))
    assert len(str(raised.value)) < len(str(toml)) + 400


@pytest.mark.parametrize("spelling", [b"a = 1\n[gpushim]\nlog = '\xff'\n"])
def test_bytes_that_are_no_text(toml: Path, spelling: bytes) -> None:
    toml.write_bytes(spelling)

    with pytest.raises(InvalidSettings) as raised:
        effective(str(toml))

    assert str(raised.value) == f"GS0504: {toml}:3: is not UTF-8"


def test_what_is_no_file(toml: Path) -> None:
    for make, message in (
        (lambda: os.mkfifo(toml), f"GS0502: {toml}: is not a regular file"),
        (lambda: toml.symlink_to(toml.parent), f"GS0502: {toml}: is not a regular file"),
        (lambda: toml.write_bytes(b"#" * (1 << 20) + b"#"), f"GS0503: {toml}: is larger than 1 MiB"),
    ):
        make()
        with pytest.raises(InvalidSettings) as raised:
            effective(str(toml))
        assert str(raised.value) == message
        toml.unlink()
    with pytest.raises(InvalidSettings) as raised:
        effective(str(toml), "GPUSHIM_CONFIG")
    assert str(raised.value) == f"GS0501: {toml}: is not there\nhint: GPUSHIM_CONFIG names it"


def test_a_file_that_may_not_be_read_is_told(toml: Path) -> None:
    loop = toml.parent / "loop.toml"
    loop.symlink_to(loop)

    with pytest.raises(InvalidSettings) as raised:
        effective(str(loop))

    assert str(raised.value) == f"GS0506: {loop}: cannot be read: Too many levels of symbolic links"


def test_a_value_nested_deeper_than_repr_goes_is_told(toml: Path) -> None:
    toml.write_text("gpushim.log." + ".".join("a" * 3000) + " = 1\n")

    with pytest.raises(InvalidSettings) as raised:
        effective(str(toml))

    # tomllib reads it, tomlkit does not.
    assert raised.value.id in ("GS0508", "GS0505")
    assert str(raised.value).startswith(f"{raised.value.id}: {toml}:1: ")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomlkit names no line for a key that occurs twice")
def test_a_fault_at_the_very_end_has_a_line_too(toml: Path) -> None:
    toml.write_text("[gpushim]\nlog = 'a'\nlog = 'b'")

    with pytest.raises(InvalidSettings) as raised:
        effective(str(toml))

    assert str(raised.value).startswith(f"GS0505: {toml}:3: ")


def test_deep_tables_are_no_crash(toml: Path) -> None:
    toml.write_text("a = " + "[" * 50_000)

    with pytest.raises(InvalidSettings):
        effective(str(toml))


def test_every_key_is_documented() -> None:
    page = (CHECKOUT / "docs/settings.md").read_text()

    assert [key for key in (*[key.name for key in KEYS], RULES, RUNTIMES) if f"`{key}`" not in page] == []


@pytest.mark.parametrize("text", ["a = \n", "[a", "a = 1\na = 2\n", "a = nope\n", "[[a]]\n[a]\n"])
def test_tomlkit_which_python_3_10_needs_refuses_the_same(
    toml: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)
    toml.write_text(text)

    with pytest.raises(InvalidSettings) as raised:
        effective(str(toml))

    assert raised.value.id == "GS0505"
    toml.write_text(STOCK)
    assert effective(str(toml)).values == defaults() | {
        "nvidia-container-cli.ldconfig": "@/sbin/ldconfig.real"
    }
