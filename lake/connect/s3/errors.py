"""Errors of a bucket, from the messages of obstore, delta-rs, DuckDB and Hadoop's S3A."""

from __future__ import annotations

import re
from typing import Final

from lake.errors import DeclarationError, LakeError, Unavailable

FIX: Final = "try again; lake doctor shows whether the store can be reached, and what it answers"
RIGHTS: Final = "give this key (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) the rights to list, get, put and delete there"
KEYS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, both of them"
_DENIED: Final = re.compile(
    r"AccessDenied|Access Denied|status code: 403|InvalidAccessKeyId|SignatureDoesNotMatch|Forbidden|status code: 401"
)
_KEYLESS: Final = re.compile(
    r"Missing (?:SecretAccessKey|AccessKeyId)|credential provider|NoCredentials|no providers in chain"
    r"|Unable to load credentials|169\.254\.169\.254"
)
_BUCKETLESS: Final = re.compile(r"NoSuchBucket|bucket does not exist", re.I)
_STRANGE: Final = re.compile(r"No FileSystem for scheme|Class \S*S3AFileSystem not found|UNSUPPORTED_FILE_SYSTEM")
_UNREACHED: Final = re.compile(
    r"Unable to execute HTTP request|Connection refused|UnknownHostException|AWSServiceIOException|status code: 5\d\d"
)
_STORE: Final = re.compile(
    r"Generic S3 error|Error performing (?:GET|PUT|POST|HEAD|DELETE)|software\.amazon\.awssdk|s3a\."
    r"|SdkClientException|S3Exception|AWS\w+Exception"
)


def error_of(error: BaseException, where: str = "") -> LakeError | None:
    """Return the error to raise if `error`, of any library, is an object store's; else None."""
    text = str(error)
    module = type(error).__module__.partition(".")[0]
    if module != "obstore" and not _STORE.search(text):
        return None
    where = where or next(iter(re.findall(r"s3a?://[^\s:'\",]+", text)), "")
    return access_error(text, where) or failed_request(text, where)


def read_error(error: BaseException, where: str) -> LakeError | None:
    """Return the error to raise if Spark cannot read objects at all, so that no object is to blame."""
    text = str(error)
    if _STRANGE.search(text):
        return DeclarationError(
            "this Spark reads no object store",
            where=where,
            fix="start it by `lake serve connect`, or with the settings that docs/how-to/cluster.md names",
        )
    return access_error(text, where) or (failed_request(text, where) if _UNREACHED.search(text) else None)


def access_error(text: str, where: str) -> Unavailable | None:
    """Return the error for a missing or forbidden bucket, if `text` of a store reports one."""
    if bucket := missing_bucket(text, where):
        return bucket
    if _DENIED.search(text):
        return Unavailable("the object store refuses this key", where=where, fix=RIGHTS)
    if _KEYLESS.search(text):
        return Unavailable("no key for the object store", where=where, fix=KEYS)
    return None


def missing_bucket(text: str, where: str) -> Unavailable | None:
    """Return the error for a missing bucket, if `text` of a store reports one."""
    if _BUCKETLESS.search(text):
        return Unavailable("there is no such bucket", where=where, fix="make it, or name another in [tool.lake]")
    return None


def failed_request(text: str, where: str) -> Unavailable:
    """Return the error for a failed request, with the store's `text`."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
    cause = re.search(r"(Error performing \w+ \S+) in [\w.]+(?:, after \d+ retries[^-]*)? - ([^\n]*)", text)
    reason = " - ".join(cause.groups()) if cause else (text.strip().splitlines() or ["no message"])[0]
    return Unavailable(f"the object store does not answer: {reason[:300]}", where=where, fix=FIX)
