"""Statistics of text and records, warnings, and the health report."""
