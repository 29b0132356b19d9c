"""The paper's tables and figures, made again: what each needs, what is there, and how it is shown."""
