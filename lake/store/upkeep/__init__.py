"""Upkeep of tables: compaction, vacuum, truncation, copies, archive."""
