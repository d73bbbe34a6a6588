"""config.toml: its keys, what they may hold, and how it is compiled. Cold: started when settings are stale.

The NVIDIA Container Toolkit's keys keep their names and meanings, so that its file works as it is; our own
are below `gpushim`. Values are one flat dict, dotted key to value.
"""

import os
import re
import stat
from typing import Any

from gpushim import __version__
from gpushim.errors import InvalidSettings
from gpushim.json_text import dumps
from gpushim.policy import ENGINE_ANNOTATIONS, KINDS
from gpushim.request import CAPABILITIES
from gpushim.settings_schema import ANSWERS, BY_NAME, KEYS, Key
from gpushim.toml_lines import Lines, Way

LIMIT = 1 << 20  # bytes

RULES = "gpushim.policy.rules"
RUNTIMES = "gpushim.runtimes"
_HINTS = 20  # a file that is something else altogether is not compared key by key: 1 ms each
_TYPES = {bool: "true or false", str: "a string", float: "a number", list: "a list of strings"}


class Effective:
    """Every setting's value and where it comes from, and what the administrator should know."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.values: dict[str, Any] = {key.name: key.default for key in KEYS}
        self.values |= {RULES: [], RUNTIMES: {}}
        self.sources = dict.fromkeys(self.values, "default")
        self.warnings: list[str] = []


def defaults() -> dict[str, Any]:
    """The values of a node without a config.toml."""
    return Effective().values


def effective(path: str, variable: str = "") -> Effective:
    """The settings of the file *path* over the defaults; empty: the defaults.

    *variable* is the environment variable that names the file, empty where none does. InvalidSettings with
    file, line and key.
    """
    out = Effective(path)
    if path:
        text = _read(path, variable)
        tables = _tables(text, path)
        lines = Lines(text)
        _fill(tables, (), lines, out)
        _check_annotations(out, lines)
    _derive(out)
    return out


def compiled(values: dict[str, Any], path: str, identity: str) -> bytes:
    """What settings.py and the launcher read: NUL-terminated `key=value` records, the JSON text last."""
    records = [f"gpushim-settings={__version__}", f"config={path}", f"identity={identity}"]
    records += [f"candidate={one}" for one in values["nvidia-container-runtime.runtimes"]]
    for handler, table in values[RUNTIMES].items():
        records += [f"candidate:{handler}={one}" for one in table.get("runtimes", ())]
    triggers = [one.strip() for one in values["swarm-resource"].split(",")]
    triggers += values["gpushim.annotation-prefixes"]
    records += [f"trigger={one}" for one in triggers if one]
    records.append(f"json={dumps(values)}")
    return "".join([f"{record}\0" for record in records]).encode("utf-8", "surrogateescape")


def _read(path: str, variable: str) -> str:
    try:
        # O_NONBLOCK: a FIFO in the place of the file must not hold every create.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as problem:
        hint = f"{variable} names it" if variable else ""
        raise InvalidSettings("GS0501", f"{path}: is not there", hint=hint) from problem
    except OSError as problem:
        raise InvalidSettings("GS0506", f"{path}: cannot be read: {problem.strerror}") from problem
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)  # before open() looks: it names a directory by the number of the descriptor
        raise InvalidSettings("GS0502", f"{path}: is not a regular file")
    with open(fd, "rb") as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise InvalidSettings("GS0503", f"{path}: is larger than {LIMIT >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise InvalidSettings("GS0504", f"{path}:{line}: is not UTF-8") from problem


def _tables(text: str, path: str) -> dict[str, Any]:
    try:
        return _parse(text)
    except (ValueError, RecursionError) as problem:
        found = re.search(r"\bat line (\d+)", str(problem))
        where = f"{path}:{found[1]}" if found else path
        if "at end of document" in str(problem):
            line = text.rstrip().count("\n") + 1
            where = f"{path}:{line}"
        raise InvalidSettings("GS0505", f"{where}: {str(problem) or type(problem).__name__}") from problem


def _parse(text: str) -> dict[str, Any]:
    try:
        import tomllib  # of 3.11 on, and 10 ms quicker to load
    except ImportError:
        return _parse_with_tomlkit(text)
    return tomllib.loads(text)


def _parse_with_tomlkit(text: str) -> dict[str, Any]:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text).unwrap()
    except TOMLKitError as problem:  # a few of them are no ValueErrors, as tomllib's are
        raise ValueError(str(problem)) from problem


def _fill(table: dict[str, Any], way: tuple[str, ...], lines: Lines, out: Effective) -> None:
    """Take over each value of *table*, which stands at *way*."""
    for name, value in table.items():
        step = (*way, name)
        key = ".".join(step)
        where = f"{out.path}:{lines.of(step)}"
        if "." in name:  # quoted: one step of its own, and not the way to a key of ours
            quoted = ".".join((*way, f'"{name}"'))
            out.warnings.append(f"{where}: {quoted}: unknown key{_near(key, out)}")
            continue
        if key == RULES:
            _check_rules(value, where, out.path, lines)
        elif key == RUNTIMES:
            _check_runtimes(value, where, out.path, lines)
        elif key in BY_NAME:
            _check(BY_NAME[key], value, where)
        elif any(known.startswith(key + ".") for known in (*BY_NAME, RULES, RUNTIMES)):
            if not isinstance(value, dict):
                raise InvalidSettings("GS0507", f"{where}: {key}: is a table, not {_told(value)}")
            _fill(value, step, lines, out)
            continue
        else:
            out.warnings.append(f"{where}: {key}: unknown key{_near(key, out)}")
            continue
        out.values[key] = value
        out.sources[key] = where


def _told(value: Any) -> str:
    """*value* as a message quotes it: it may be a megabyte long, or nested deeper than repr() goes."""
    import reprlib  # only a mistake pays for it

    shortened = reprlib.Repr()
    shortened.maxstring = shortened.maxother = 100
    return shortened.repr(value)


def _near(key: str, out: Effective) -> str:
    if len(out.warnings) >= _HINTS:
        return ""
    import difflib  # 3 ms that a file without mistakes does not pay

    near = difflib.get_close_matches(key, [*BY_NAME, RULES, RUNTIMES], 1, cutoff=0.85)
    return f", is {near[0]} meant?" if near else ""


def _check(key: Key, value: Any, where: str) -> None:
    kinds = (int, float) if key.type is float else key.type
    right = isinstance(value, kinds) and not (key.type is float and isinstance(value, bool))
    if key.type is list and right:
        right = all(isinstance(item, str) for item in value)
    if not right:
        raise InvalidSettings(
            "GS0508", f"{where}: {key.name}: must be {_TYPES[key.type]}, not {_told(value)}"
        )
    if key.choices and value not in key.choices:
        known = ", ".join([repr(choice) for choice in key.choices])
        raise InvalidSettings("GS0509", f"{where}: {key.name}: must be one of {known}, not {_told(value)}")
    texts = [value] if key.type is str else value if key.type is list else []
    if any("\0" in text for text in texts):
        raise InvalidSettings("GS0510", f"{where}: {key.name}: holds a NUL character")
    if key.type is float and not 0 < value < 3600:
        raise InvalidSettings(
            "GS0511", f"{where}: {key.name}: must be above 0 and below 3600, not {_told(value)}"
        )
    if key.name == "nvidia-container-runtime.mode" and value == "csv":
        raise InvalidSettings(
            "GS0512", f"{where}: {key.name}: 'csv' (Tegra) is not supported", hint="use 'auto'"
        )
    if key.name == "supported-driver-capabilities" and value != "all":
        _check_capabilities(value, where)
    if key.name.startswith("gpushim.roots.") and not value.startswith("/"):
        raise InvalidSettings("GS0513", f"{where}: {key.name}: must be an absolute path, not {_told(value)}")


def _check_capabilities(value: str, where: str) -> None:
    for item in [part.strip() for part in value.split(",")]:
        if item and item not in CAPABILITIES:
            raise InvalidSettings(
                "GS0514",
                f"{where}: supported-driver-capabilities: unknown capability {_told(item)}",
                hint=f"the capabilities are {', '.join(CAPABILITIES)}, or all",
            )


def _check_rules(rules: Any, where: str, path: str, lines: Lines) -> None:
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise InvalidSettings("GS0515", f"{where}: {RULES}: is a list of tables, [[{RULES}]]")
    for n, rule in enumerate(rules):
        way: Way = (*RULES.split("."), n)
        spot = f"{path}:{lines.of(way)}: {RULES}[{n}]"
        for name, value in rule.items():
            _check_rule(name, value, f"{path}:{lines.of((*way, name))}: {RULES}[{n}].{name}")
        if not set(rule) & set(KINDS):
            raise InvalidSettings(
                "GS0516", f"{spot}: names no kind", hint=f"the kinds are {', '.join(KINDS)}"
            )


def _check_rule(name: str, value: Any, spot: str) -> None:
    if name in KINDS:
        if value not in ANSWERS:
            known = ", ".join([repr(answer) for answer in ANSWERS])
            raise InvalidSettings("GS0517", f"{spot}: must be one of {known}, not {_told(value)}")
    elif name == "uid":
        uids = value if isinstance(value, list) else [value]
        if not all(isinstance(uid, int) and not isinstance(uid, bool) and uid >= 0 for uid in uids):
            raise InvalidSettings("GS0518", f"{spot}: must be a uid or a list of uids, not {_told(value)}")
    elif name == "user-namespace":
        if not isinstance(value, bool):
            raise InvalidSettings("GS0519", f"{spot}: must be true or false, not {_told(value)}")
    elif name == "annotation":
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise InvalidSettings("GS0520", f"{spot}: is a table of strings, not {_told(value)}")
    else:
        raise InvalidSettings(
            "GS0521",
            f"{spot}: is nothing a rule can match or decide",
            hint=f"a rule matches uid, user-namespace, annotation, and decides {', '.join(KINDS)}",
        )


def _check_annotations(out: Effective, lines: Lines) -> None:
    """A rule may match what an engine sets itself, and nothing that a pod or an image can write."""
    engines = {out.values["gpushim.engine"]}
    engines |= {table.get("engine", "") for table in out.values[RUNTIMES].values()}
    known = [key for engine in sorted(engines) for key in ENGINE_ANNOTATIONS.get(engine, ())]
    for n, rule in enumerate(out.values[RULES]):
        for key in rule.get("annotation", {}):
            if key in known:
                continue
            line = lines.of((*RULES.split("."), n, "annotation", key))
            spot = f"{out.path}:{line}: {RULES}[{n}].annotation"
            if not known:
                raise InvalidSettings(
                    "GS0525",
                    f"{spot}: no engine is named whose annotations can be trusted",
                    hint='gpushim.engine = "containerd" or "crio" names it, or engine in gpushim.runtimes',
                )
            raise InvalidSettings(
                "GS0526",
                f"{spot}: {key!r} is not one that the engine itself sets",
                hint=f"those are {', '.join(known)}",
            )


def _check_runtimes(runtimes: Any, where: str, path: str, lines: Lines) -> None:
    if not isinstance(runtimes, dict):
        raise InvalidSettings("GS0522", f"{where}: {RUNTIMES}: is a table, not {_told(runtimes)}")
    for handler, table in runtimes.items():
        way = (*RUNTIMES.split("."), handler)
        spot = f"{path}:{lines.of(way)}: {RUNTIMES}.{handler}"
        if not isinstance(table, dict) or set(table) - {"runtimes", "engine"}:
            raise InvalidSettings("GS0523", f"{spot}: is a table that holds runtimes and engine")
        if "=" in handler or "/" in handler or "\0" in handler:
            raise InvalidSettings("GS0524", f"{spot}: is no name of an executable")
        if "runtimes" in table:
            _check(
                Key(f"{RUNTIMES}.{handler}.runtimes", list, [], ""),
                table["runtimes"],
                f"{path}:{lines.of((*way, 'runtimes'))}",
            )
        if "engine" in table:
            choices = BY_NAME["gpushim.engine"].choices
            _check(
                Key(f"{RUNTIMES}.{handler}.engine", str, "", "", choices),
                table["engine"],
                f"{path}:{lines.of((*way, 'engine'))}",
            )


def _derive(out: Effective) -> None:
    """The defaults that hang on another key, and what a value stands for."""
    values, sources = out.values, out.sources
    if values["nvidia-container-cli.root"]:
        for key in ("gpushim.roots.driver", "gpushim.roots.dev"):
            if sources[key] == "default":
                values[key] = values["nvidia-container-cli.root"]
                sources[key] = "nvidia-container-cli.root"
    accept = "accept-nvidia-visible-devices-envvar-when-unprivileged"
    if not values[accept] and sources["gpushim.policy.devices-env"] == "default":
        values["gpushim.policy.devices-env"] = "sys-admin"
        sources["gpushim.policy.devices-env"] = accept
    if values["supported-driver-capabilities"] == "all":
        values["supported-driver-capabilities"] = ",".join(CAPABILITIES)
    if values["nvidia-container-runtime.mode"] == "legacy":
        where = sources["nvidia-container-runtime.mode"]
        out.warnings.append(f"{where}: nvidia-container-runtime.mode: 'legacy' behaves as 'auto'")
