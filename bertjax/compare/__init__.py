"""Is a run right? The page of runs: what the checks say, and the curves."""
