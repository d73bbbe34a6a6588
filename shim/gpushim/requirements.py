"""What an image requires of a node: NVIDIA_REQUIRE_*, and CUDA_VERSION of images from before it. Pure.

Source: libnvidia-container, src/cli/dsl.c; the NVIDIA Container Toolkit, internal/requirements. In an
expression, terms between spaces are alternatives, and the factors of a term between commas must all hold.
"""

from gpushim.errors import InvalidRequest, Refused, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "NVIDIA_REQUIRE_"
DISABLE = "NVIDIA_DISABLE_REQUIRE"

# In the order in which they are looked for: the longer ones first.
_OPERATORS = ("!=", "<=", ">=", "=", "<", ">")
_CHEAP = ("cuda", "driver")
_OF_GPUS = ("arch", "brand")
_TRUE = ("1", "t", "T", "true", "TRUE", "True")

# nvml.h, nvmlBrandType_t, by the names that images use.
BRANDS = (
    *("unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws"),
    *("cloudgaming", "quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx"),
)


class Factor:
    """One comparison: *property* cuda, driver, arch or brand."""

    __slots__ = ("operator", "property", "value")

    def __init__(self, property: str, operator: str, value: str) -> None:
        self.property = property
        self.operator = operator
        self.value = value

    def holds(self, value: str) -> bool:
        """Whether it holds for *value*, the node's."""
        if self.property == "brand":
            return (value == self.value) == (self.operator == "=")
        left, right = _numbers(value), _numbers(self.value)
        size = max(len(left), len(right))
        a, b = left + (0,) * (size - len(left)), right + (0,) * (size - len(right))
        return {
            "=": a == b,
            "!=": a != b,
            "<": a < b,
            "<=": a <= b,
            ">": a > b,
            ">=": a >= b,
        }[self.operator]


def required(env: dict[str, str]) -> dict[str, str]:
    """The expressions of *env* by variable; none where it switches them off."""
    if env.get(DISABLE, "") in _TRUE:
        return {}
    out = {name: value for name, value in env.items() if name.startswith(PREFIX) and "JETPACK" not in name}
    version = env.get("CUDA_VERSION", "")
    if version and f"{PREFIX}CUDA" not in env:
        out["CUDA_VERSION"] = "cuda>=" + ".".join(version.split(".")[:2])
    return {name: value for name, value in out.items() if value.strip()}


def check(
    expressions: dict[str, str], facts: dict[str, str], gpus: "Callable[[], list[dict[str, str]]]"
) -> None:
    """Refused where one of *expressions* does not hold; InvalidRequest where it has no meaning.

    *facts* are cuda and driver; *gpus* gives arch and brand of each GPU, which takes NVML, and is asked only
    where the result hangs on them.
    """
    for name, expression in expressions.items():
        terms = [term for term in (_term(name, text) for text in expression.split()) if term]
        possible = [term for term in terms if _cheap_part_holds(term, facts)]
        if not terms or any(all(one.property in _CHEAP for one in term) for term in possible):
            continue
        if possible and _holds_for_all(possible, gpus()):
            continue
        node = ", ".join([f"{key} is {value}" for key, value in facts.items()])
        raise Refused(
            "GS0220",
            f"{name}: {shown(expression)} does not hold on this node: {node}",
            hint=f"use an image for this driver, update the driver, or set {DISABLE}=true",
        )


def _holds_for_all(terms: "list[list[Factor]]", gpus: "list[dict[str, str]]") -> bool:
    return bool(gpus) and all(
        any(all(one.property in _CHEAP or one.holds(gpu[one.property]) for one in term) for term in terms)
        for gpu in gpus
    )


def _cheap_part_holds(term: list[Factor], facts: dict[str, str]) -> bool:
    return all(one.property not in _CHEAP or one.holds(facts[one.property]) for one in term)


def _term(name: str, text: str) -> list[Factor]:
    """The factors of *text* on properties that are known; InvalidRequest for what is no comparison."""
    factors = [_factor(name, part) for part in text.split(",") if part]
    return [one for one in factors if one.property in (*_CHEAP, *_OF_GPUS)]


def _factor(name: str, text: str) -> Factor:
    for operator in _OPERATORS:
        property, found, value = text.partition(operator)
        if not found:
            continue
        sensible = operator in ("=", "!=") if property == "brand" else bool(_numbers(value))
        if not property or (property in (*_CHEAP, *_OF_GPUS) and not sensible):
            break
        return Factor(property, operator, value)
    raise InvalidRequest(
        "GS0221",
        f"{name}: {shown(text)} is no requirement",
        hint="it has the form cuda>=12.4, driver>=550, arch>=7.0 or brand=tesla",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of *version*; empty where it is none."""
    parts = version.split(".")
    return (
        tuple([int(part) for part in parts])
        if all(part.isdigit() and part.isascii() for part in parts)
        else ()
    )
