"""The tests of the backend contract, one file for each thing that backends keep."""
