"""The released create_pretraining_data.py, to the bit."""
