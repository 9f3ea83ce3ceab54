"""A plan before a run: TPU slices by name, compiled steps, estimates and prices."""
