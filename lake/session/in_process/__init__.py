"""Spark queries evaluated by DuckDB in this process, if the result is known to equal Spark's.

`session` is a session of Spark Connect without a server, so that kinds and functions of jobs are the same text for both
engines. `relations` translates a plan of the protocol and `queries` a statement in SQL, both by calls of `steps`.
`protocol` and `syntax` make the `tree` of an expression; `expressions` translates it by the tables of `functions` and
`aggregates`. `types`, `casts` and `signatures` are their vocabulary. `mode` chooses the engine. All raise Unsupported
for a query that only Spark evaluates.
"""
