"""The mesh and the sharding of arrays, figures of devices, and compiler options."""
