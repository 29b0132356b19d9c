"""What runs where this package is not: each part is used here to check a file, and copied into a script."""
