"""What is counted in text and records, judged in words, and shown."""
