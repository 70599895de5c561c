"""Commands that grant access through `lake serve http`."""

from __future__ import annotations

from typing import Final

import click

from lake.cli import FiniteNumber, Shell, common_options, table

DAYS: Final = FiniteNumber(above=True, most=36_500)  # a hundred years


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def reader(ctx: click.Context, shell: Shell) -> None:
    """Grant readers published tables, by lake serve http.

    Each has a token of its own, and reads as CSV, JSON and Parquet, by SQL, and by Delta Sharing.

    \b
    lake reader add power-bi --table customer_daily
    lake reader list
    lake reader revoke power-bi
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("add, list or revoke?")


@reader.command()
@click.argument("name")
@click.option(
    "--table",
    "tables",
    multiple=True,
    required=True,
    metavar="TABLE",
    help="A table that the reader may read: customer_daily, 'gold.*', or '*' for all tables; also log.orders, 'log.*',"
    " lake.runs, 'lake.*', which '*' leaves out. Repeatable.",
)
@click.option("--days", type=DAYS, metavar="N", help="The token expires after N days (default: never).")
@click.option("--profile", is_flag=True, help="Print a profile file of Delta Sharing, which has the token in it.")
@click.option(
    "--url",
    default="http://127.0.0.1:8480",
    show_default=True,
    help="With --profile: where the reader reaches the server.",
)
@common_options
def add(shell: Shell, name: str, tables: tuple[str, ...], days: float | None, profile: bool, url: str) -> None:
    """Grant the reader NAME tables, and print its token. This once: only a hash of it is kept.

    \b
    lake reader add power-bi --table customer_daily --days 90
    lake reader add pandas --table 'gold.*' --profile > pandas.share
    """
    from lake.read import reader_grants

    grant, token = reader_grants.grant(shell.settings, name, tables, days=days)
    data = {
        "reader": grant.name,
        "grant_id": grant.id,
        "tables": list(grant.tables),
        "expires": grant.expires,
        "token": token,
    }
    shell.emit(data, reader_grants.profile(grant, token, url) if profile else token)
    until = f"{grant.expires:%Y-%m-%d %H:%M} UTC" if grant.expires else "it is revoked"
    shell.report(f"{grant.name} may read {', '.join(grant.tables)} until {until}")


@reader.command("list")
@common_options
def list_(shell: Shell) -> None:
    """List who may read what.

    \b
    lake reader list
    """
    from lake.read import reader_grants

    rows = reader_grants.records(shell.settings)
    times = ("granted_at", "expires")
    cells = [
        {**row, "tables": ", ".join(row["tables"])}
        | {name: f"{row[name]:%Y-%m-%d %H:%M}" if row[name] else "never" for name in times}
        | {"expired": "expired" if row["expired"] else ""}
        for row in rows
    ]
    expired = ["expired"] if any(row["expired"] for row in rows) else []
    lines = table(cells, "reader", "tables", "granted_at", "expires", *expired, "grant_id")
    shell.emit(rows, lines if rows else "no readers")


@reader.command()
@click.argument("name")
@common_options
def revoke(shell: Shell, name: str) -> None:
    """Take back what the reader NAME was granted. A running server knows within a second.

    \b
    lake reader revoke power-bi
    """
    from lake.read import reader_grants

    reader_grants.revoke(shell.settings, name)
    shell.emit({"revoked": name}, f"{name}: revoked")
