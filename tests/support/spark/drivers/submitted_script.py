"""Starts a session and prints the settings that it has, as JSON."""

import json

import floodmark as fm

NAMES = ("spark.master", "spark.driver.host", "spark.driver.bindAddress", "spark.app.name", "spark.ui.enabled")

if __name__ == "__main__":
    spark = fm.session()
    settings = {name: spark.sparkContext.getConf().get(name) for name in NAMES}
    settings |= {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")}
    print(json.dumps(settings))
    spark.stop()
