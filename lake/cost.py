"""The cost model: from how many rows on the other way of two costs less, as measured on two cores and local files.

One process, by Arrow, DuckDB and delta-rs, has no latency and one machine's memory; a Spark job takes 0.2 to 1 s before
its first row and grows with the data alone. Every threshold between them stands here, with what it was found from.
Code reads them as `cost.NAME`, so that tests can set them.
"""

from __future__ import annotations

HANDED_ROWS = 100_000
HANDED_BYTES = 8 << 20
"""So many rows, in files of so many bytes, are handed to Spark from this process, in 0.2 s: its own scan of a version
that it has not seen takes 1.4 s whatever the size (of 20 files; 3.4 s in a bucket, at 20 ms a request), then 0.4 s.
"""
SCAN_ROWS = 20_000
"""So many rows with one of the sought keys are handed to Spark, as one task; for more the whole table is read."""
COMPARE_ROWS = 500_000
"""Rows of the affected keys that are compared in this process, beside their old images: about 1 GB at 100 columns."""
LOOKUP_ROWS = 2_000
"""Rows of an input that are put in order in this process to explain a row; more are by Spark."""
AFFECTED_SHARE = 0.2
"""Above this share of a table's rows, evaluating all of it costs less than restricting its inputs to the keys."""
PEOPLE_AT_ONCE = 100_000
"""People whose keys are in this process at once, at 500 bytes each: those of more go to Spark in parts, each in half a
second, and lie on its disks.
"""
PRUNED_LOG_ROWS = 20_000
"""Above so many rows of a log, a Spark scan for a few keys costs more than to see which columns hold them: of 30,000
rows a micro-batch of `Latest` takes 3.0 s by a scan, 1.2 s so.
"""
PRUNED_KEYS = 10_000
"""For more keys, pruning reads most files of a log all the same, unless times are told by the keys."""
SOUGHT_ROWS = 500_000
"""Of so many rows, which files have some of a few keys is seen first, by the columns of the keys alone: they are mostly
a small part of a row, and the events of a key often came within a short time.
"""
PICKED_BYTES = 256 << 20
"""Of files of so many bytes only those columns are read, where a few keys are sought, of which rows are made: Spark's
plan, which shows them, takes 0.3 s on a busy machine, to read all columns of 1 GB takes 5 s.
"""
BLAMED_ROWS = 1_000_000
"""Of more rows, each look for the event that a function fails on takes too long."""
SPILLED_SHARE = 1.0
"""So many times the bytes of a table's inputs Spark may put on the disk while it evaluates the table."""
SHARED_MEMORY = 0.25
"""So much of the driver's memory may hold logs that several tables read; what needs more, each reads for itself."""
BRIEF_ROWS = 2_000_000
BRIEF_BYTES = 32 << 20
"""A run of so many bytes, into logs and tables of so many rows, ends before it repays to compile its code well: without
that it takes a third less time. To build tables of 3,000,000 events takes as long, to rebuild them then 1.7 times.
"""
DEDUPLICATED_LOG_ROWS = 20_000_000
"""Rows of the log's files that are searched in this process for the ids of a batch: `_bucket` and `_id` are read."""
READ_BYTES = 16 << 20
"""Bytes of records that are read in this process at once; of more, each file is read by one task of Spark."""
ROW_GROUP = 8 << 20
"""How large the parts of a file are that are read, or passed over, apart: a reader that wants most columns holds the
whole of one a thread.
"""
ORDERED_BYTES = 1 << 30
"""A table of so many bytes is put in order in this process, all of it at once; a larger one by Spark."""
APPENDED_ROWS = 500_000
APPENDED_BYTES = 128 << 20
"""A batch of at most these rows and bytes of text goes to its log from this process, in 3.3 times the bytes: of 337,000
events in 101 MB, 13 CPU seconds where Spark, which evaluates the batch for its fingerprint and again to write it, takes
20.
"""
LOADED_BYTES = 64 << 20
"""Bytes of a log's own files that are loaded into this process at once, to be compared or to be written anew."""
FEED_ROWS = 200_000
FEED_COMMITS = 50
"""Two versions of a table of so many rows are told apart by its change feed, if no more commits lie between: 0.2 s for
10,000 changed rows of 3,000,000, where to compare all rows of the files that changed takes 3 s.
"""
FINGERPRINTED_TABLE_ROWS = 200_000
"""A table of so many rows is read whole for its fingerprint in 0.2 s; of a larger one that is done at publication."""
