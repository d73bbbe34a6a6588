"""The command line of runc and crun, as far as a create, run or restore needs it.

Sources: `--help` of runc 1.1 to 1.3 and crun 1.8 to 1.28, and what each was seen to take. runc (urfave/cli)
reads `-bundle V` and `-b=V` as `--bundle V`, and options behind the container id; crun (argp) reads `-bV`,
`-b=V` as the directory `=V`, and a prefix of an option that fits one only. cffi_src/command_line.c has the
same tables.
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


class Call:
    """What stands in one command line; the defaults are the runtimes'."""

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
        if word == "--":
            for rest in words:
                _take_word(call, rest)
        elif len(word) > 1 and word[0] == "-":
            name, value = _option(word, call.command != "", crun)
            if value is None and name in (COMMAND_VALUES if call.command else GLOBAL_VALUES):
                value = next(words, None)
                if value is None:
                    raise InvalidCall("GS0111", f"{word}: has no value")
            if not call.command and name not in GLOBAL_VALUES + GLOBAL_FLAGS:
                unknown = True
            _take_option(call, name, value)
        elif call.command or word in COMMANDS or not unknown:
            _take_word(call, word)
    return call


def _option(word: str, behind: bool, crun: bool) -> tuple[str, str | None]:
    """The long name of the option *word*, and the value that stands in the same word."""
    body = word[2:] if word.startswith("--") else word[1:]
    if crun and not word.startswith("--"):
        if behind and body[0] in SHORT:
            return SHORT[body[0]], body[1:] or None
        return body, None
    name, equals, value = body.partition("=")
    if behind:
        name = SHORT.get(name, name) if not word.startswith("--") else name
    if crun:
        name = _whole(name, behind)
    return name, value if equals else None


def _whole(name: str, behind: bool) -> str:
    """The one option that starts with *name*; *name* itself where none or several do."""
    known = COMMAND_VALUES + COMMAND_FLAGS if behind else GLOBAL_VALUES + GLOBAL_FLAGS
    fitting = [one for one in known if one.startswith(name)]
    return fitting[0] if len(fitting) == 1 and name not in known else name


def _take_option(call: Call, name: str, value: str | None) -> None:
    if call.command:
        if name == "bundle" and value is not None:
            call.bundle = value
        elif name == "config" and value is not None:
            call.config = value
    elif name == "log" and value is not None:
        call.log = value
    elif name == "log-format" and value is not None:
        call.log_format = value
    elif name == "systemd-cgroup":
        call.systemd_cgroup = value not in ("false", "0", "f", "F", "FALSE", "False")


def _take_word(call: Call, word: str) -> None:
    if not call.command:
        call.command = word
    elif not call.container_id:
        call.container_id = word
