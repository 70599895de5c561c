"""Cost model: thresholds between two ways of doing the same work, measured on two cores and local files.

This process, by Arrow, DuckDB and delta-rs, has no latency but one machine's memory. A Spark job takes 0.2 to 1 s
before its first row; then its time grows only with the data. Code reads them as `cost.NAME`, so that tests can set
them.
"""

from __future__ import annotations

HANDED_ROWS = 100_000
HANDED_BYTES = 8 << 20
"""Rows handed to Spark from this process at most, in files of this size: 0.2 s. Spark's own scan of a version that it
has not seen takes 1.4 s for any size (3.4 s in a bucket, at 20 ms a request), then 0.4 s.
"""
SCAN_ROWS = 20_000
"""Rows with one of the sought keys that are handed to Spark as one task; beyond it the whole table is read."""
COMPARE_ROWS = 500_000
"""Rows of affected keys compared in this process with their old images: about 1 GB at 100 columns."""
AFFECTED_SHARE = 0.2
"""Above this share of a table's rows, evaluating all of it costs less than restricting its inputs to the keys."""
PEOPLE_AT_ONCE = 100_000
"""Persons whose keys are in this process at once, at 500 bytes each. Spark gets more in parts, each in half a second.
"""
PRUNED_LOG_ROWS = 20_000
"""Above this number of rows of a log, pruning costs less than a scan for a few keys: a micro-batch of `Latest` over
30,000 rows takes 1.2 s, not 3.0 s.
"""
PRUNED_KEYS = 10_000
"""For more keys, pruning reads most files of a log anyway, unless the keys limit event times."""
SOUGHT_ROWS = 500_000
"""Above this number of rows, a search for a few keys first finds their files by the key columns alone. These are a
small part of a row, and the events of a key are often close in time.
"""
KEYS_PER_FILE = 3
"""With more keys for each file, hardly a file lacks all of them, and the search for their files finds all."""
PICKED_BYTES = 256 << 20
"""From this size of files, a search for a few keys reads only the needed columns: Spark's plan names them in 0.3 s,
reading all columns of 1 GB takes 5 s.
"""
BLAMED_ROWS = 1_000_000
"""Above this number of input rows, the event on which a function fails is not searched: that takes too long."""
SPILLED_SHARE = 1.0
"""Bytes that Spark may spill while it evaluates a table, as a multiple of the bytes of its inputs."""
BRIEF_ROWS = 2_000_000
BRIEF_BYTES = 32 << 20
"""A run of this size, into logs and tables of at most BRIEF_ROWS rows, takes a third less time without optimizing
compilation. Building tables of 3,000,000 events takes as long, rebuilding them 1.7 times as long.
"""
MERGED_ROWS = 200_000
"""In a larger table this process writes the files of changed rows again, for 10,000 of 1,000,000 rows in 0.5 CPU s; a
MERGE of delta-rs takes 0.9, but 0.04 in a small table, where this takes 0.06.
"""
STREAMED_ROWS = 32_768
"""Rows of a batch that flows from DuckDB to a writer, few enough for the processor's caches: to write files again takes
a quarter less CPU than with batches of a million rows.
"""
COLLECTED_ROWS = 500_000
"""Rows of a diff that this process takes from Spark to write them."""
IN_PROCESS_CHANGES = 1_000_000
"""Changed rows of each input for which DuckDB advances a table in this process, if it knows how. Two tables of 400,000
orders get 500,000 more in 6 s each; Spark takes 45 s.
"""
IN_PROCESS_SCAN_ROWS = 20_000_000
"""Rows of an input that DuckDB scans in this process."""
IN_PROCESS_MAPPED_ROWS = 500_000
"""Rows that a Python function of a job gets in this process, by one thread; for more, Spark has one for each core."""
IN_PROCESS_CALLED_ROWS = 2_000_000
"""Rows scanned by a query with functions of Python for what DuckDB lacks: zones 30 µs a row, logarithms 25 µs."""
IN_PROCESS_RESULT_BYTES = 1 << 30
"""Rows that a query of DuckDB may return to this process; beyond it Spark evaluates and writes the table."""
INTERPRETED_ROWS = 20_000
"""New events of a cycle, into logs and tables of at most BRIEF_ROWS rows, for which Spark interprets its plans: to
generate and compile code for the plans of 2,000 events takes a quarter of the CPU of a cycle of `--follow`.
"""
DEDUPLICATED_LOG_ROWS = 20_000_000
"""Rows of the log's files that are searched in this process for the ids of a batch."""
READ_BYTES = 128 << 20
"""Bytes of records that are read in this process at once; of more, each file is a task of Spark. 160,000 events in
20 MB take 8 s here; Spark, which has to start, takes 28 s.
"""
ROW_GROUP = 8 << 20
"""Unit of reading and skipping: a reader of most columns holds one for each thread."""
DICTIONARY = 128 << 10
"""Largest dictionary of a column in a row group: writing takes a sixth less CPU than with 1 MB, files stay as large."""
ORDERED_BYTES = 1 << 30
"""A larger table is sorted by Spark."""
APPENDED_ROWS = 500_000
APPENDED_BYTES = 128 << 20
"""A batch of at most APPENDED_ROWS rows and this size of text is appended by this process, in 3.3 times the bytes:
337,000 events in 101 MB take 13 CPU seconds; Spark, which evaluates the batch twice, takes 20.
"""
LOADED_BYTES = 64 << 20
"""Bytes of a log's own files that are loaded into this process at once."""
FEED_ROWS = 200_000
FEED_COMMITS = 50
"""Versions of a table of FEED_ROWS rows and more, with at most this number of commits between, are compared by its
change feed: 0.2 s for 10,000 changed rows of 3,000,000, instead of 3 s.
"""
FINGERPRINTED_TABLE_ROWS = 200_000
"""A table up to this size is read whole for its fingerprint in 0.2 s; for a larger one that happens at publication."""
