"""How the numbers in the documents were made: the paper's tables, timings, comparisons."""
