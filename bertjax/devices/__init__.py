"""The mesh and where arrays lie on it, what devices can do, what their compiler is told."""
