"""What `bertjax.doctor` looks at: a machine, its devices and its storage, found and expected.

`probes` has the table of what is looked at, and runs each probe with a time limit.
"""
