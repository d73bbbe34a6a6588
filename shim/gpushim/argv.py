"""The command line of runc and crun, as far as a create, run or restore needs it.

Sources: `--help` of runc 1.1 to 1.3 and crun 1.8 to 1.28, and what each was seen to take. runc (urfave/cli)
reads `-bundle V` and `-b=V` as `--bundle V`, and options behind the container id; crun (argp) reads `-bV`,
`-b=V` as the directory `=V`, several letters behind one dash (`-dbV`), and a prefix of an option that fits
one only. A command that only tells how it is used makes nothing, and reads as the command `help`.
cffi_src/command_line.c has the same tables.
"""

from gpushim.errors import InvalidCall

MAKERS = ("create", "run", "restore")
COMMANDS = (
    *MAKERS,
    "checkpoint",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "resume",
    "spec",
    "start",
    "state",
    "update",
)

# Options with a value, of both runtimes: before the command, and behind create, run and restore.
GLOBAL_VALUES = ("cgroup-manager", "criu", "log", "log-format", "log-level", "root", "rootless")
COMMAND_VALUES = (
    "bundle",
    "config",
    "console-socket",
    "empty-ns",
    "image-path",
    "lsm-mount-context",
    "lsm-profile",
    "manage-cgroups-mode",
    "pid-file",
    "pidfd-socket",
    "preserve-fds",
    "work-path",
)
GLOBAL_FLAGS = ("debug", "help", "systemd-cgroup", "usage", "version")
COMMAND_FLAGS = (
    "auto-dedup",
    "detach",
    "ext-unix-sk",
    "file-locks",
    "help",
    "keep",
    "lazy-pages",
    "no-new-keyring",
    "no-pivot",
    "no-subreaper",
    "shell-job",
    "tcp-established",
    "usage",
)
SHORT = {"b": "bundle", "f": "config"}
HELP = ("?", "h", "help", "usage")
GLOBAL_OPTIONS = (*GLOBAL_VALUES, *GLOBAL_FLAGS, "V", "v", *HELP)
COMMAND_OPTIONS = (*COMMAND_VALUES, *COMMAND_FLAGS, "d", *HELP)


class Call:
    """What stands in one command line; the defaults are the runtimes'.

    A *config* with a slash is a path from the working directory, one without a name in the bundle; *log* is
    empty where crun's names no file.
    """

    __slots__ = ("bundle", "command", "config", "container_id", "log", "log_format", "systemd_cgroup")

    def __init__(self) -> None:
        self.command = ""
        self.bundle = "."
        self.config = "config.json"
        self.container_id = ""
        self.log = ""
        self.log_format = ""
        self.systemd_cgroup = False


def is_crun(runtime: str) -> bool:
    """Whether the low-level runtime at the path *runtime* is crun, as far as its name tells."""
    return "crun" in runtime.rpartition("/")[2]


def parse(args: list[str], runtime: str = "") -> Call:
    """*args*, without the program's name, as *runtime* reads them; InvalidCall where a value is missing."""
    call = Call()
    crun = is_crun(runtime)
    unknown = False  # an option of a runtime newer than the tables went before: it may have a value
    words = iter(args)
    for word in words:
        if word == "--" and call.command:
            for rest in words:
                _take_word(call, rest)
        elif word == "--":
            # It ends the options before the command only: those of the command come behind.
            call.command = next(words, "")
        elif len(word) > 1 and word[0] == "-":
            for name, value in _options(word, call.command != "", crun):
                if value is None and name in (COMMAND_VALUES if call.command else GLOBAL_VALUES):
                    value = next(words, None)
                    if value is None:
                        raise InvalidCall("GS0111", f"{word}: has no value")
                if name not in (COMMAND_OPTIONS if call.command else GLOBAL_OPTIONS):
                    unknown = True
                if call.command and name in HELP and value is None and not unknown:
                    call.command = "help"
                _take_option(call, name, value, crun)
        elif call.command or word in COMMANDS or not unknown:
            _take_word(call, word)
    return call


def _options(word: str, behind: bool, crun: bool) -> list[tuple[str, str | None]]:
    """The long names of the options in *word*, each with the value that stands in the same word."""
    body = word[2:] if word.startswith("--") else word[1:]
    if crun and not word.startswith("--"):
        return _letters(body, behind)
    name, equals, value = body.partition("=")
    if behind:
        name = SHORT.get(name, name)
    if crun:
        name = _whole(name, behind)
    return [(name, value if equals else None)]


def _letters(body: str, behind: bool) -> list[tuple[str, str | None]]:
    """The options of crun that *body*, without its dash, spells a letter each."""
    found: list[tuple[str, str | None]] = []
    for at, letter in enumerate(body):
        if behind and letter in SHORT:
            return [*found, (SHORT[letter], body[at + 1 :] or None)]
        found.append((letter, None))
    return found


def _whole(name: str, behind: bool) -> str:
    """The one option that starts with *name*; *name* itself where none or several do."""
    known = COMMAND_VALUES + COMMAND_FLAGS if behind else GLOBAL_VALUES + GLOBAL_FLAGS
    fitting = [one for one in known if one.startswith(name)]
    return fitting[0] if len(fitting) == 1 and name not in known else name


def _take_option(call: Call, name: str, value: str | None, crun: bool) -> None:
    if call.command:
        if name == "bundle":
            call.bundle = value or "."
        elif name == "config":
            call.config = _config(value or "", crun)
    elif name == "log" and value is not None:
        call.log = _log_file(value) if crun else value
    elif name == "log-format" and value is not None:
        call.log_format = value
    elif name == "cgroup-manager":
        call.systemd_cgroup = value == "systemd"
    elif name == "systemd-cgroup":
        call.systemd_cgroup = value not in ("false", "0", "f", "F", "FALSE", "False")


def _config(value: str, crun: bool) -> str:
    """The config that `--config VALUE` names, as Call.config has it."""
    if not value or (crun and value == "config.json"):
        return "config.json"
    return value if "/" in value else f"./{value}"


def _log_file(value: str) -> str:
    kind, colon, name = value.partition(":")
    if colon and kind in ("journald", "syslog"):
        return ""
    return name if colon and kind == "file" else value


def _take_word(call: Call, word: str) -> None:
    if not call.command:
        call.command = word
    elif not call.container_id:
        call.container_id = word
