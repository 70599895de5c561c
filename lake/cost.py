"""Cost model: thresholds between two ways of doing the same work, measured on two cores and local files.

This process, by Arrow, DuckDB and delta-rs, has no latency but one machine's memory. A Spark job takes 0.2 to 1 s
before its first row; then its time grows only with the data. Every threshold between them is here, with its
measurement. Code reads them as `cost.NAME`, so that tests can set them.
"""

from __future__ import annotations

HANDED_ROWS = 100_000
HANDED_BYTES = 8 << 20
"""Up to HANDED_ROWS rows, in files of this size, are handed to Spark from this process, in 0.2 s. Spark's own scan of a
version that it has not seen takes 1.4 s for any size (of 20 files; 3.4 s in a bucket, at 20 ms a request), then 0.4 s.
"""
SCAN_ROWS = 20_000
"""Up to this number, rows with one of the sought keys are handed to Spark as one task; beyond it the whole table is
read.
"""
COMPARE_ROWS = 500_000
"""Rows of the affected keys that are compared in this process with their old images: about 1 GB at 100 columns."""
LOOKUP_ROWS = 2_000
"""Rows of an input that are sorted in this process to explain a row; more are sorted by Spark."""
AFFECTED_SHARE = 0.2
"""Above this share of a table's rows, evaluating all of it costs less than restricting its inputs to the keys."""
PEOPLE_AT_ONCE = 100_000
"""Persons whose keys are in this process at once, at 500 bytes each. More are handed to Spark in parts, each in half a
second, and stored on its disks.
"""
PRUNED_LOG_ROWS = 20_000
"""Above this number of rows of a log, a Spark scan for a few keys costs more than pruning: for 30,000 rows a
micro-batch of `Latest` takes 3.0 s by a scan, and 1.2 s with pruning.
"""
PRUNED_KEYS = 10_000
"""For more keys, pruning reads most files of a log anyway, unless the keys limit event times."""
SOUGHT_ROWS = 500_000
"""Above this number of rows, a search for a few keys first finds the files with them, by reading only the key columns.
These are mostly a small part of a row, and the events of a key are often close in time.
"""
PICKED_BYTES = 256 << 20
"""From this size of files, a search for a few keys reads only the needed columns: finding them by Spark's plan takes
0.3 s on a busy machine, reading all columns of 1 GB takes 5 s.
"""
BLAMED_ROWS = 1_000_000
"""Above this number of input rows, the event on which a function fails is not searched: that takes too long."""
SPILLED_SHARE = 1.0
"""Bytes that Spark may spill while it evaluates a table, as a multiple of the bytes of its inputs."""
SHARED_MEMORY = 0.25
"""Share of the driver's memory that may hold logs read by several tables; beyond it, each table reads for itself."""
BRIEF_ROWS = 2_000_000
BRIEF_BYTES = 32 << 20
"""A run of this size, into logs and tables of at most BRIEF_ROWS rows, ends before optimizing compilation pays off:
without it the run takes a third less time. Building tables of 3,000,000 events takes as long, rebuilding them 1.7 times
as long.
"""
DEDUPLICATED_LOG_ROWS = 20_000_000
"""Rows of the log's files that are searched in this process for the ids of a batch: `_bucket` and `_id` are read."""
READ_BYTES = 16 << 20
"""Bytes of records that are read in this process at once; of more, each file is read by one task of Spark."""
ROW_GROUP = 8 << 20
"""Size of a row group, the unit of reading and skipping: a reader of most columns holds one for each thread."""
ORDERED_BYTES = 1 << 30
"""A table up to this size is sorted in this process as a whole; a larger one by Spark."""
APPENDED_ROWS = 500_000
APPENDED_BYTES = 128 << 20
"""A batch of at most APPENDED_ROWS rows and this size of text is appended by this process, in 3.3 times the bytes:
337,000 events in 101 MB take 13 CPU seconds. Spark, which evaluates the batch for its fingerprint and again to write
it, takes 20.
"""
LOADED_BYTES = 64 << 20
"""Bytes of a log's own files that are loaded into this process at once, to be compared or rewritten."""
FEED_ROWS = 200_000
FEED_COMMITS = 50
"""Two versions of a table of at least FEED_ROWS rows are compared by its change feed, if at most this number of commits
lies between: 0.2 s for 10,000 changed rows of 3,000,000, while comparing all rows of the changed files takes 3 s.
"""
FINGERPRINTED_TABLE_ROWS = 200_000
"""A table up to this size is read whole for its fingerprint in 0.2 s; for a larger one that happens at publication."""
