"""Scores of predictions as the leaderboards compute them: numpy and plain Python, no models.

`classification` gives fractions as scikit-learn and scipy do; `squad` and `entities` give percent,
as the official SQuAD scripts and conlleval print them.
"""
