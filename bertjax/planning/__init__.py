"""What `bertjax.plan` stands on: slices by name, prices, and the reading of compiled programs."""
