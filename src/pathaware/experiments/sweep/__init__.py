"""Many runs from one file: which, in what processes, and what came out."""
