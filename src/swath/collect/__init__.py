"""The service that collects: a worker core and ways to deliver what it made."""
