"""Evaluation of Spark's queries by DuckDB in this process, where its answer is known to be Spark's.

`session` is a session of Spark Connect without a server: a kind and a job's function are one text for both engines.
`relations`, `expressions` and `functions` translate a query, `types` its casts, `syntax` parses SQL text.
"""
