"""Is a run right? Its curves beside others, reference curves, and what is off, in words."""
