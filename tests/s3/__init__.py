"""A warehouse in a bucket of a real S3 server."""
