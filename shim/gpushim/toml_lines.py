"""Where in a TOML text its keys stand: the parser tells that for syntax errors only."""

import re

Way = tuple[str | int, ...]

# No setting lies deeper, and a line of a thousand dots must not cost a thousand ways.
_DEPTH = 8

_TOKEN = re.compile(
    r'''
      (?P<blank>   [ \t\r]+ | \#[^\n]* )
    | (?P<newline> \n )
    | (?P<long>    """(?:\\.|[^\\])*?"{3,5} | \'\'\'.*?\'{3,5} )
    | (?P<quoted>  "(?:\\.|[^"\\\n])*" | '[^'\n]*' )
    | (?P<mark>    [\[\]{},=.] )
    | (?P<bare>    [^\s\[\]{},=.\#"']+ )
    ''',
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_SHORT = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


class Lines:
    """The line of each key, and of each item of a list, in *text*, which a parser has accepted."""

    def __init__(self, text: str) -> None:
        self._first: dict[Way, int] = {}
        self._items: dict[Way, int] = {}  # [[way]]: the number of the last
        self._read(text)

    def of(self, way: Way) -> int:
        """The line, counted from 1, where *way* is first named, or else what it lies in."""
        for length in range(min(len(way), _DEPTH), 0, -1):
            if way[:length] in self._first:
                return self._first[way[:length]]
        return 1

    def _read(self, text: str) -> None:
        line = 1
        table: Way = ()
        way: Way = ()  # of the value being read
        key: list[str] = []
        key_line = 1
        state = "key"
        is_item = False  # [[ ]], not [ ]
        # What is open around us: a list and the number of its item, or an inline table and None.
        around: list[tuple[Way, int | None]] = []
        for token in _TOKEN.finditer(text):
            kind, word, here = token.lastgroup, token[0], line
            line += word.count("\n")
            if kind == "blank":
                continue
            if kind == "newline":
                if not around:
                    state, key = "key", []
                continue
            if state == "value":
                if around and around[-1][1] is not None and word not in ("]", ","):
                    way = (*around[-1][0], around[-1][1])[:_DEPTH]
                    self._first.setdefault(way, here)
                if word == "[" and kind == "mark":
                    around.append((way, 0))
                elif word == "{" and kind == "mark":
                    around.append((way, None))
                    state, key = "key", []
                elif word in ("]", "}") and around:
                    around.pop()
                elif word == "," and around:
                    base, number = around.pop()
                    around.append((base, None if number is None else number + 1))
                    if number is None:
                        state, key = "key", []
            elif kind in ("bare", "quoted"):
                if not key:
                    key_line = here
                key.append(_step(word))
            elif word == "=":
                base = around[-1][0] if around else table
                way = self._note(base, key, key_line)
                state = "value"
            elif word == "}" and around:  # an empty inline table
                around.pop()
                state = "value"
            elif word == "[":
                is_item = state == "header"
                state = "header"
            elif word == "]" and key:
                table = self._header(key, key_line, is_item)
                key, is_item = [], False

    def _note(self, base: Way, key: list[str], line: int) -> Way:
        way = base
        for step in key[: _DEPTH - len(base)]:
            way = (*way, step)
            self._first.setdefault(way, line)
        return way

    def _header(self, key: list[str], line: int, is_item: bool) -> Way:
        way: Way = ()
        for n, step in enumerate(key[:_DEPTH], 1):
            way = (*way, step)
            self._first.setdefault(way, line)
            if is_item and n == len(key):
                self._items[way] = self._items.get(way, -1) + 1
            if way in self._items:
                way = (*way, self._items[way])
                self._first.setdefault(way, line)
        return way


def _step(word: str) -> str:
    if word[0] == "'":
        return word[1:-1]
    if word[0] != '"':
        return word
    return _ESCAPE.sub(
        lambda m: chr(int(m[1][1:], 16)) if m[1][0] in "uU" else _SHORT.get(m[1], m[1]), word[1:-1]
    )
