"""Scripts that tests run as Spark drivers of their own, most of them to kill them."""
