"""Remote Spark: a cluster that shares no disk, no user and no packages with the client."""
