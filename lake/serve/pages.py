"""HTML pages of the intake: how to post events, the backlog, and the problems. They load no other resource."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from html import escape
from importlib import resources
from typing import Final

from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.serve.describe import curl, is_idempotent, needs_id
from lake.serve.problems import KINDS

STYLE: Final = resources.files("lake.serve").joinpath("style.css").read_text("utf-8")


def home(parts: Iterable[str]) -> str:
    return page(
        "Headwater",
        "<h1>Headwater</h1>"
        '<p><a href="/openapi.json">OpenAPI document</a> · <a href="/problems">Problems</a> · '
        f'<a href="/health">Health</a></p>{"".join(parts)}',
    )


def streams(
    source: str, contracts: Iterable[Contract], base: str, facts: Mapping[str, str], *, decides: Collection[str]
) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    sections = "".join(_stream(contract, base, contract.name in decides) for contract in contracts)
    return (
        f"<section><h2>Post events to {escape(source)}</h2>"
        "<p>Post JSON, an array of JSON, or NDJSON. The answer 202 comes once the events are on the disk.</p>"
        f"<dl>{rows}</dl></section>{sections}"
    )


def problems() -> str:
    rows = "".join(
        f'<tr id="{kind}"><td>{status}</td><td>{escape(title)}</td><td>{escape(fix)}</td></tr>'
        for kind, (status, title, fix) in KINDS.items()
    )
    return page(
        "Problems",
        '<p><a href="/">Home</a></p><h1>Problems</h1><div class="wide"><table>'
        f"<tr><th>Status</th><th>What</th><th>What to do</th></tr>{rows}</table></div>",
    )


def _stream(contract: Contract, base: str, decides: bool) -> str:
    rows = "".join(map(_row, contract.fields))
    notes = (
        "A repeated request gives the same events, which are counted as duplicates."
        if is_idempotent(contract)
        else "A repeated request adds its events again: the contract has no id."
    )
    if needs_id(contract):
        notes += " Each request needs an id: the header Idempotency-Key."
    if decides:
        notes += " Events are decided before they are taken: 409 says why one is refused."
    if contract.envelope:
        notes += f" Records are {escape(contract.envelope)} messages; these are the columns of their rows."
    return (
        f'<section id="{escape(contract.name)}"><h2>{escape(contract.name)}</h2><p>{escape(contract.doc)}</p>'
        f'<div class="wide"><table><tr><th>Field</th><th>Type</th><th>Meaning</th></tr>{rows}</table></div>'
        f'<p class="muted">{notes}</p><pre>{escape(curl(contract, base, decides=decides))}</pre></section>'
    )


def _row(field: Field) -> str:
    kind = " | ".join(field.symbols) if field.symbols else field.type
    words = [field.doc]
    if field.unit:
        words.append(f"In {field.unit}.")
    words += [f"At least {field.minimum}."] if field.minimum is not None else []
    words += [f"At most {field.maximum}."] if field.maximum is not None else []
    if field.is_fact:
        words.append(f"Taken from the request: {'.'.join(field.path)}.")
    elif field.nullable or field.has_default:
        words.append("Optional.")
    meaning = escape(" ".join(filter(None, words)))
    return f"<tr><td><code>{escape(field.name)}</code></td><td>{escape(kind)}</td><td>{meaning}</td></tr>"


def page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><body>{body}"
    )
