"""What is done to tables beside writing them: packed, cleared of what nothing needs, cut short, copied, signed."""
