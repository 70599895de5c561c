"""Commands about causes: explain, diff."""

from __future__ import annotations

import click

from lake.cli import Shell, WholeNumber, common_options

LIMIT = click.option(
    "--limit",
    default=10,
    show_default=True,
    type=WholeNumber(1),
    metavar="N",
    help="Show at most N rows, and N events of each.",
)


@click.command()
@click.argument("table")
@click.argument("key", nargs=-1, metavar="COLUMN=VALUE...")
@click.option("--at-cut", type=WholeNumber(), metavar="N", help="Show the table as it was at cut N.")
@LIMIT
@common_options
def explain(shell: Shell, table: str, key: tuple[str, ...], at_cut: int | None, limit: int) -> None:
    """Show the events behind a row of TABLE (its lineage). Says what became of each event.

    Values are written as in SQL, without quotes: 7, 2013-01-31, UA; null is null. If a table has
    several rows per key (versions, matches), the key alone shows all of them. At a cut of which the table keeps
    nothing, the row is made of the logs, by definitions and contracts of now.

    \b
    lake explain aircraft_position tailnum=N10156
    lake explain carrier_daily carrier=UA day=2013-01-31 --at-cut 7
    """
    shell.load()
    from lake.engine.explain.explain import explain as run
    from lake.engine.explain.render import as_data, as_tree

    explanation = run(shell.load_project(), lambda: shell.spark, table, key, at_cut=at_cut, limit=limit)
    shell.draw(as_data(explanation), as_tree(explanation))


@click.command()
@click.argument("table")
@click.option(
    "--from-edition", "old", type=WholeNumber(), required=True, metavar="A", help="The edition to compare from."
)
@click.option("--to-edition", "new", type=WholeNumber(), required=True, metavar="B", help="The edition to compare to.")
@click.option("--no-events", is_flag=True, help="Show only the rows: immediate, without Spark.")
@LIMIT
@common_options
def diff(shell: Shell, table: str, old: int, new: int, limit: int, *, no_events: bool) -> None:
    """Show how rows of TABLE differ between two editions. Shows the events that caused the changes, too.

    \b
    lake diff --from-edition 1 --to-edition 2 carrier_daily
    """
    if not no_events:
        shell.load()
    from lake.engine.explain.edition_diff import diff_editions
    from lake.engine.explain.render import diff_data, diff_tree

    connect = None if no_events else lambda: shell.spark
    changes = diff_editions(shell.load_project(), connect, table, old=old, new=new, limit=limit)
    shell.draw(diff_data(changes), diff_tree(changes))
