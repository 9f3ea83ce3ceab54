"""Options, a row each, and the sentences that say what is wrong with one."""
