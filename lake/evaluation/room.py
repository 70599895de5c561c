"""What Spark puts on the disk while it evaluates a table: where room may lack, that is told before it runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lake import cost
from lake.config import Settings
from lake.file_modes import free
from lake.session import is_here, local_dir

GB = 1 << 30


def tell(settings: Settings, table: str, size_of: Callable[[], int]) -> None:
    """Warns where evaluating `table` from inputs in files of `size_of()` bytes may need more disk than is free.

    Of a session on this machine alone: what the disks of a cluster's workers have is not known here.
    """
    if not is_here(settings):
        return
    folder, size = local_dir(settings), size_of()
    needed, left = size * cost.SPILLED_SHARE, free(folder)
    if needed > left:
        logging.getLogger("lake").warning(
            "%s: Spark may put %.1f GB on the disk while it evaluates %.1f GB of inputs, and %s has %.1f GB free: free"
            ' some space, or have "spark.local.dir" in [tool.lake.spark.conf] name a folder on a larger disk',
            *(table, needed / GB, size / GB, folder, left / GB),
        )
