"""Parts of the builders of values: tables of numbers to records."""
