"""Nests of least energy: exact, beam, enumerated; from there on by moves."""
