"""Slurm's feature expressions (``sbatch --constraint``).

A constraint becomes alternatives, of which one must hold (``[rack1|rack2]``: all nodes of one rack). An alternative is
a list of groups: so many nodes that have certain features, count 0 meaning every node (``[a*2&b*1]``, ``gpu*4``).
``&`` and ``|`` bind equally and are read from left to right, as slurmctld does; parentheses group.
What is not understood holds for no node, and ``problem`` says why.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z0-9_.:=/%+#@-]+)|(?P<sign>[&|*()\[\]]))")
_MAX_ALTERNATIVES = 64
_MAX_DEPTH = 64
"""Parentheses, and changes between ``&`` and ``|``, in one expression."""
_MAX_LENGTH = 4096
_MAX_NODES = 65_533
"""Slurm can have no more."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature."""

    name: str

    def holds(self, features: AbstractSet[str]) -> bool:
        """True where a node with these features has it."""
        return self.name in features


@dataclass(frozen=True, slots=True)
class AllOf:
    """All of them; of none: true."""

    terms: tuple[Expression, ...] = ()

    def holds(self, features: AbstractSet[str]) -> bool:
        """True where a node with these features meets all."""
        return all(e.holds(features) for e in self.terms)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of them."""

    terms: tuple[Expression, ...]

    def holds(self, features: AbstractSet[str]) -> bool:
        """True where a node with these features meets one."""
        return any(e.holds(features) for e in self.terms)


Expression = Feature | AllOf | AnyOf


@dataclass(frozen=True, slots=True)
class FeatureCount:
    """``count`` nodes for which ``wanted`` holds; 0: every node."""

    count: int
    expression: Expression


Alternative = tuple[FeatureCount, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A parsed expression."""

    text: str = ""
    alternatives: tuple[Alternative, ...] = ((),)
    problem: str = ""
    """Why it cannot be understood; then no node meets it."""
    min_nodes: int = field(default=1)
    """Fewest nodes that can meet it: the counts of its smallest alternative."""

    def met_by_one_node(self, features: AbstractSet[str]) -> bool:
        """True where a node with these features alone meets it."""
        return self.min_nodes == 1 and any(
            sum(g.count for g in alternative) <= 1 and all(g.expression.holds(features) for g in alternative)
            for alternative in self.alternatives
        )

    def may_use(self, features: AbstractSet[str]) -> bool:
        """True where a node with these features can be one of the nodes that meet it together."""
        return any(any(e.holds(features) for _, e in node_counts(a, self.min_nodes)) for a in self.alternatives)


def node_counts(alternative: Alternative, nodes: int) -> list[tuple[int, Expression]]:
    """The alternative as exact numbers of nodes that make up ``nodes``, or its own counts where these are more."""
    every = tuple(g.expression for g in alternative if g.count == 0)
    parts: list[tuple[int, Expression]] = [
        (g.count, AllOf((g.expression, *every)) if every else g.expression) for g in alternative if g.count
    ]
    rest = nodes - sum(count for count, _ in parts)
    if rest > 0 or not parts:
        parts.append((max(rest, 1), every[0] if len(every) == 1 else AllOf(every)))
    return parts


def features_text(constraint: str) -> str:
    """``feature a100``, ``features a100&nvlink``: a constraint in a sentence."""
    return f"features {constraint}" if set(constraint) & set("&|*[( ") else f"feature {constraint}"


class _ParseError(ValueError):
    """The expression is not one that Slurm documents."""


def parse_constraint(text: str) -> Constraint:
    """Parses an expression; empty: every node will do."""
    if len(text) > _MAX_LENGTH:
        why = f"longer than {_MAX_LENGTH} characters"
        return Constraint(text[:_SHOWN], (), f"invalid constraint {text[:_SHOWN]!r}...: {why}")
    return _parse(text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Constraint:
    if not text.strip():
        return Constraint()
    try:
        alternatives = _Parser(_tokens(text)).parse()
    except _ParseError as unclear:
        return Constraint(text, (), f"invalid constraint {text[:_SHOWN]!r}: {unclear}")
    fewest = min(sum(g.count for g in a) for a in alternatives)
    return Constraint(text, alternatives, "", max(1, fewest))


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _ParseError(f"unexpected {text[at:].strip()[:1]!r}")
        tokens.append(found["name"] or found["sign"])
        at = found.end()
    return tokens


class _Parser:
    """Recursive descent; each rule gives alternatives."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> tuple[Alternative, ...]:
        found = self._chain(matching=False)
        if self._at < len(self._tokens):
            raise _ParseError(f"unexpected {self._tokens[self._at][:_SHOWN]!r}")
        if any(sum(g.count for g in alternative) > _MAX_NODES for alternative in found):
            raise _ParseError(f"more than {_MAX_NODES} nodes")
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise _ParseError("unexpected end")
        self._at += 1
        return token

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _ParseError("nested too deeply")

    def _chain(self, *, matching: bool) -> tuple[Alternative, ...]:
        self._deeper()
        left = self._term()
        last = ""
        while self._peek() in ("&", "|"):
            sign = self._next()
            if last not in ("", sign):
                self._deeper()
            last = sign
            right = self._term()
            if sign == "&":
                left = tuple(_conjunction(a, b) for a in left for b in right)
            elif matching:
                left += right
            else:
                left = _disjunction(left, right)
            if len(left) > _MAX_ALTERNATIVES:
                raise _ParseError("too many alternatives")
        return left

    def _term(self) -> tuple[Alternative, ...]:
        token = self._next()
        if token == "(":
            inner = self._chain(matching=False)
            self._expect(")")
        elif token == "[":
            inner = self._chain(matching=True)
            self._expect("]")
        elif token in "&|*)]":
            raise _ParseError(f"unexpected {token!r}")
        else:
            inner = ((FeatureCount(0, Feature(token)),),)
        if self._peek() != "*":
            return inner
        self._next()
        count = self._next()
        if not count.isdecimal() or len(count) > len(str(_MAX_NODES)) or int(count) < 1:
            raise _ParseError(f"{count[:_SHOWN]!r} is not a number of nodes")
        if any(g.count for a in inner for g in a):
            raise _ParseError("nested counts")
        return tuple((FeatureCount(int(count), _merged(a)),) for a in inner)

    def _expect(self, token: str) -> None:
        got = self._next()
        if got != token:
            raise _ParseError(f"expected {token!r}, found {got!r}")


def _merged(alternative: Alternative) -> Expression:
    if len(alternative) == 1:
        return alternative[0].expression
    # Flat, so that a thousand features in a row are not a thousand levels.
    parts = (g.expression.terms if isinstance(g.expression, AllOf) else (g.expression,) for g in alternative)
    return AllOf(tuple(chain.from_iterable(parts)))


def _conjunction(a: Alternative, b: Alternative) -> Alternative:
    """Groups that bear on every node become one."""
    groups = a + b
    every = tuple(g for g in groups if g.count == 0)
    counted = tuple(g for g in groups if g.count)
    return (*counted, FeatureCount(0, _merged(every))) if every else counted


def _disjunction(left: tuple[Alternative, ...], right: tuple[Alternative, ...]) -> tuple[Alternative, ...]:
    """Each node may take either side, where neither side counts nodes."""
    if all(len(a) == 1 and a[0].count == 0 for a in left + right) and len(left) == len(right) == 1:
        sides = (side[0][0].expression for side in (left, right))
        return (
            (
                FeatureCount(
                    0, AnyOf(tuple(chain.from_iterable(s.terms if isinstance(s, AnyOf) else (s,) for s in sides)))
                ),
            ),
        )
    return left + right
