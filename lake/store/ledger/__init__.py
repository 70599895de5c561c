"""Ledger of the project: what it has done and published, in tables under `meta/`."""
