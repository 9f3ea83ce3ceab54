"""The mesh and the placement of arrays on it, figures of devices, options of their compiler."""
