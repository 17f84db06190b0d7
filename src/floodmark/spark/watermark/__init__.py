"""Watermarks on DataFrames of any source: stated by mark rows, or computed from the rows of each origin.

`dataframes` has what a program calls (`with_watermark`, `late`), `marks` has `follow_marks`. A computed watermark
goes round: `statistics` are observed in each batch, `listener` files them in the home, `chain` computes the
next watermark from them, and `mark_source` gives it to Spark. Tasks import `mark_source`, `chain` and `late`:
keep these light. `floodmark.spark.source` uses `marks`; nothing else of Floodmark imports this folder.
"""
