"""Scores of predictions as leaderboards compute them: numpy and plain Python, no models.

`classification` returns fractions, as scikit-learn and scipy do; `squad` and `entities` return
percent, as the official SQuAD scripts and conlleval do.
"""
