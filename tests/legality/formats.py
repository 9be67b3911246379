"""A step graph that is a JSON document, written in the other formats that are read."""

from __future__ import annotations

import json
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from foreign_cases import Document

HEAD = ("format", "step", "plan", "model", "precision", "devices", "stages")


def in_dot(document: Document) -> str:
    """Return the graph in DOT, all that it says as attributes."""
    lines = ["digraph step {", *(f"  {key}={_quoted(text)};" for key, text in _head(document).items())]
    for node in document["nodes"]:
        facts = [f"{key}={_quoted(text)}" for key, text in _facts(node).items()]
        lines.append(f"  {node['id']} [{', '.join(facts)}];")
    for edge in document["edges"]:
        said = f" [kind={edge['kind']}]" if "kind" in edge else ""
        lines.append(f"  {edge['source']} -> {edge['target']}{said};")
    return "\n".join([*lines, "}", ""])


def in_graphml(document: Document) -> str:
    """Return the graph in GraphML, every value a text."""
    keys = dict.fromkeys([*HEAD, "kind", *(key for node in document["nodes"] for key in _facts(node))])
    lines = ['<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    lines += [f'<key id="{key}" for="all" attr.name="{key}" attr.type="string"/>' for key in keys]
    lines += ['<graph edgedefault="directed">', _data(_head(document))]
    lines += [f'<node id="{node["id"]}">{_data(_facts(node))}</node>' for node in document["nodes"]]
    for edge in document["edges"]:
        ends = f'source="{edge["source"]}" target="{edge["target"]}"'
        lines.append(f"<edge {ends}>{_data({'kind': edge['kind']} if 'kind' in edge else {})}</edge>")
    return "\n".join([*lines, "</graph>", "</graphml>", ""])


def _head(document: Document) -> dict[str, str]:
    return {key: _text(document[key]) for key in HEAD if key in document}


def _facts(node: Document) -> dict[str, str]:
    """Return what a node says as texts; what it does not say is left out."""
    found = {key: value for key, value in node.items() if key not in ("id", "amount") and value is not None}
    found["ranks"] = ",".join(map(str, node["ranks"]))
    amount = node.get("amount") or {}
    found |= {"amount": amount["value"]} if "value" in amount else {}
    found |= {key: amount[key] for key in ("terms", "least") if key in amount}
    return {key: _text(value) for key, value in found.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _data(facts: dict[str, str]) -> str:
    return "".join(f"<data key={quoteattr(key)}>{escape(text)}</data>" for key, text in facts.items())


TEXTS = {".dot": in_dot, ".graphml": in_graphml, ".json": json.dumps}
"""Suffix → what writes a document so."""
