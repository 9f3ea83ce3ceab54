"""How text becomes examples: one module for each kind of pair objective; `pairing` has them all."""
