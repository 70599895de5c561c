"""Records: the bytes of a file, a message or a request become typed columns, by one implementation for every way in."""
