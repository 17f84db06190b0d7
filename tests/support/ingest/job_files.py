"""A whole job file, for tests of its parts."""

WHOLE = """\
[job]
name = "orders"
zone = "Europe/Berlin"

[variables]
shop = "north"

[time]
name = "updated"
from = 2024-01-01
to = "P0D"
grid = "daily"
partial = false
grace_days = 3
abstinence_days = 1
settle = "15 minutes"

[units]
name = "customer"
list = ["c1", "c2"]

[source]
kind = "sql"
url = "postgresql://reader@db/{{shop}}"
password = "env:SHOP_PASSWORD"
table = "orders"
watermark = "updated_at"
zone = "UTC"

[target]
path = "landed/{{job.name}}"
mode = "merge"
keys = ["id"]
drift = "evolve"

[limits]
cells = 500
attempts = "unlimited"
"""
ENVIRONMENT = {"SHOP_PASSWORD": "hunter2hunter2", "STAGE": "test"}
