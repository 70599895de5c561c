"""Validation of commands before the log: reports, without Spark, whether a Fold would reject an event."""
