"""Is a run right? The curves of runs and of references, and the faults of a run, in words."""
