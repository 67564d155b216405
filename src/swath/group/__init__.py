"""The one way to ask workers for something."""
