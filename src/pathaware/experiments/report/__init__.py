"""Figures and tables of trained runs, and the HTML report of them."""
