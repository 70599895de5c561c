"""Who is at work: one writer at a time, readers that nothing may be deleted from."""
