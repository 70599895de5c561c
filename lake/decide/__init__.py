"""Commands before the log: whether a Fold would refuse an event if it were its key's next, answered without Spark."""
