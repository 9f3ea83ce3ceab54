"""The checks of a run: its series and facts, a table of faults, and reference curves."""
