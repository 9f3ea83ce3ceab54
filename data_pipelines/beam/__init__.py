"""The fast build on many machines: an Apache Beam pipeline of the same functions."""
