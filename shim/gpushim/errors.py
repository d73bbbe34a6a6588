"""What an operator can act on.

ShimError
├── InvalidBundle      config.json or its directory is not what the OCI runtime-spec says
├── InvalidCall        the command line has no meaning
├── InvalidState       what a runtime says of a container that lives already cannot be, or be used
├── InvalidRequest     the container asks in a way that has no meaning
├── UnknownDevice      the container asks for something this node does not have
├── UnknownContainer   a command is about a container that is not there
├── Refused            the administrator's policy says no
├── InvalidNode        the kernel's files say something that cannot be true, or nothing in time
├── InvalidSettings    config.toml cannot be read as settings
├── Blocked            a device cgroup denies, and its programs cannot be made to allow
└── Conflict           the container's config already says something else at our place

Each is raised with an id, once in the code and once in docs/errors.md. What the kernel refuses stays an
OSError with its path; anything else is a fault of ours and keeps its traceback.
"""


class ShimError(Exception):
    """Shown as `id: message` and a hint, never as a traceback; exit status 1."""

    exit_code = 1

    def __init__(self, id: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.id = id
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.id}: {self.args[0]}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


def shown(value: str) -> str:
    """*value* as a message quotes it: an image may have written a megabyte."""
    return repr(value if len(value) <= 100 else value[:100] + "…")


class InvalidBundle(ShimError):
    """config.json or its directory is not what the OCI runtime-spec says."""


class InvalidCall(ShimError):
    """The command line has no meaning."""


class InvalidState(ShimError):
    """What a runtime says of a container that lives already cannot be, or be used."""


class InvalidRequest(ShimError):
    """The container asks in a way that has no meaning."""


class UnknownDevice(ShimError):
    """The container asks for something this node does not have."""


class UnknownContainer(ShimError):
    """A command is about a container that is not there."""


class Refused(ShimError):
    """The administrator's policy says no."""


class InvalidNode(ShimError):
    """The kernel's files say something that cannot be true, or nothing in time."""


class InvalidSettings(ShimError):
    """config.toml cannot be read as settings."""


class Blocked(ShimError):
    """A device cgroup denies, and its programs cannot be made to allow."""


class Conflict(ShimError):
    """The container's config already says something else at our place."""


def in_words(problem: BaseException) -> str:
    """What is said of *problem*: the kernel's refusals have two ids of their own."""
    if isinstance(problem, ShimError):
        return str(problem)
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"GS0001: {problem.filename}: {problem.strerror}"
    return f"GS0002: {type(problem).__name__}: {problem}"
