"""Upkeep of tables: compaction, vacuum, truncation, archive."""
