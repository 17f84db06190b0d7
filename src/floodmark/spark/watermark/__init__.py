"""Watermarks on DataFrames of any source: stated by mark rows, or computed from the rows of each origin.

Start reading at `dataframes` (`with_watermark`, `late`) and `marks` (`follow_marks`). A computed watermark is a loop:
`statistics` are observed in each batch, `listener` stores them in the home, `chain` computes the next watermark from
them, and `mark_source` feeds it to Spark. Tasks import `mark_source`, `chain` and `late`: keep these light. Only
`floodmark.spark.source` imports from this folder (`marks`, `listener`).
"""
