"""Validation of commands before the log, without Spark: whether a Fold would reject an event."""
