"""Storage in buckets of S3, or of a server with its protocol: `s3://BUCKET/PREFIX`.

Keys are only in the environment, where delta-rs, obstore and Hadoop's S3A read them. Clients of Spark Connect could
read them in Spark's settings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.connect.s3.place import S3Settings, bucket_location, error_of, read_error
from lake.store.storage import Storage, StorageKind


class S3(StorageKind):
    scheme = "s3"
    settings = S3Settings
    folder_url = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")
    form = '"s3://BUCKET/PREFIX", of letters, digits and . _ = -'
    jars = Path(__file__).with_name("jars.txt")

    def open(self, settings: Settings, url: str) -> Storage:
        from lake.connect.s3.bucket import bucket

        return bucket(bucket_location(settings, url), settings.path(".lake/staging"))

    def spark_conf(self, settings: Settings, scratch: Path | None) -> dict[str, str]:
        at = bucket_location(settings, next(iter(settings.urls.values())))
        hadoop = {
            "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "fs.s3a.endpoint.region": at.region,
            "fs.s3a.path.style.access": str(at.path_style).lower(),
            "fs.s3a.input.stream.type": "classic",  # its default needs a further jar of Amazon's
        }
        if at.endpoint:
            hadoop |= {"fs.s3a.endpoint": at.endpoint, "fs.s3a.connection.ssl.enabled": str(not at.is_plain).lower()}
        if scratch:
            hadoop |= {"hadoop.tmp.dir": str(scratch), "fs.s3a.buffer.dir": str(scratch)}
        return {f"spark.hadoop.{name}": value for name, value in hadoop.items()}

    error_of = staticmethod(error_of)
    read_error = staticmethod(read_error)


KIND: Final = S3()
