"""Long runs of whole systems that are killed on the way: each is a program, and says what it has shown."""
