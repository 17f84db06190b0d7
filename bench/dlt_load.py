"""Run by measure_landing.py in an environment of its own: dlt loads a table into Delta Lake, by one of its backends."""

import sys
import time

import dlt
from dlt.sources.sql_database import sql_table


def main(url: str, place: str, backend: str) -> None:
    """Load it once, and print the seconds that it took."""
    begun = time.perf_counter()
    rows = sql_table(credentials=url, table="orders", backend=backend, chunk_size=500_000, reflection_level="full")
    rows.apply_hints(table_format="delta")
    pipeline = dlt.pipeline(
        "bench",
        destination=dlt.destinations.filesystem(bucket_url=f"{place}/{backend}"),
        dataset_name="shop",
        pipelines_dir=f"{place}/work-{backend}",
    )
    pipeline.run(rows, loader_file_format="parquet", write_disposition="append")
    print(time.perf_counter() - begun)


if __name__ == "__main__":
    main(*sys.argv[1:])
