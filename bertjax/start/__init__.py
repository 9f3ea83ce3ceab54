"""The whole way from text to a model that is exported, by the commands that a user would type."""
