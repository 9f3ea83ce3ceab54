"""What may be off in a run: its series and facts, a table of checks, and reference curves."""
