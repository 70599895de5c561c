"""Evaluation of Spark's queries by DuckDB in this process, if its answer is known to be Spark's.

`session` is a session of Spark Connect without a server: a kind and a job's function are one text for both engines.
`relations` translates a query of the protocol, `queries` one in SQL, both by `steps`, `expressions` and `functions`;
`types` has its casts, and `syntax` parses SQL text. Each of them raises Unsupported for what Spark alone evaluates.
"""
