"""The project in Airflow: its DAGs, whose ids begin with the name below. `graph.json` beside it has its tables."""

from __future__ import annotations

from pathlib import Path

from lake_airflow import dags

globals().update(dags("project", Path(__file__).resolve().parents[1]))
