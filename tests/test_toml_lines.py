"""gpushim.toml_lines: where a key stands, in any spelling that TOML has."""

import pytest

from gpushim.toml_lines import Lines, Way


@pytest.mark.parametrize(
    ("text", "way", "line"),
    [
        pytest.param("a = 1\n\nb = 2\n", ("b",), 3, id="key"),
        pytest.param("a = 1\n[b.c]\n", ("b",), 2, id="what-leads-there"),
        pytest.param("a = 1\n[b.c]\n", ("b", "c", "d"), 2, id="what-it-lies-in"),
        pytest.param("a = 1\n", ("zzz",), 1, id="not-there"),
        pytest.param("[a]\nb.c = 1\nb.d = 2\n", ("a", "b", "d"), 3, id="dotted"),
        pytest.param("a = {\tb = {c = 1}, d = {}, e = 2}\n", ("a", "e"), 1, id="inline-table"),
        pytest.param("a = {}\nb = 1\n", ("b",), 2, id="behind-an-empty-inline-table"),
        pytest.param("a = '''\nb = 1\n[c]\n'''\nb = 2\n", ("b",), 5, id="a-key-inside-a-text"),
        pytest.param('a = """\\"""\nb = 1\n"""""\nb = 2\n', ("b",), 4, id="quotes-inside-a-text"),
        pytest.param("a = '#' # b = 1\nb = 2\n", ("b",), 2, id="comments"),
        pytest.param("# \u2028 \x85\nb = 2\n", ("b",), 2, id="only-newlines-end-lines"),
        pytest.param("[\"a\" . 'b]c']\nd = 1\n", ("a", "b]c", "d"), 2, id="quoted-steps"),
        pytest.param('x = 1\n"l\\u006fg" = 1\n', ("log",), 2, id="escaped"),
        pytest.param("[[a]]\nb = 1\n[[a]]\nb = 2\n", ("a", 1, "b"), 4, id="tables-in-a-list"),
        pytest.param("[[a]]\n[a.b]\n[[a]]\n[a.b]\nc = 1\n", ("a", 1, "b", "c"), 5, id="a-table-below-the-second"),
        pytest.param("[[a]]\n[[a.b]]\n[[a]]\n[[a.b]]\nc = 1\n", ("a", 1, "b", 0, "c"), 5, id="lists-in-lists"),
        pytest.param("a = [\n {b = 1},\n # {b = 2},\n {b = 3},\n]\nc = 1\n", ("a", 1, "b"), 4, id="list-on-lines"),
        pytest.param("a = [\n {b = 1},\n [2],\n]\nc = 1\n", ("c",), 5, id="behind-a-list"),
        pytest.param("a = [[1, 2.5], [\n3]]\n", ("a", 1, 0), 2, id="list-in-a-list"),
        pytest.param("a = 1979-05-27 07:32:00\r\nb = -inf\r\nc = 1\r\n", ("c",), 3, id="dates-and-windows-lines"),
    ],
)  # fmt: skip
def test_line_of(text: str, way: Way, line: int) -> None:
    assert Lines(text).of(way) == line


def test_a_deep_way_costs_no_square() -> None:
    assert Lines(".".join("a" * 200_000) + " = 1\nb = 1\n").of(("b",)) == 2
