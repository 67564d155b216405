"""The commands and their options, one module each; what they do is imported when they are called."""
