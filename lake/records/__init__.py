"""Record readers: turn the bytes of a file, a message or a request into typed columns."""
