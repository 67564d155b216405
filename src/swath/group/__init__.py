"""Groups of workers: requests with weights, and calls between requests."""
