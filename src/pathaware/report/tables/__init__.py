"""One table, written as Markdown, LaTeX, HTML and as a picture; each in a file of its own."""
