"""Settings that are given outside of the program win over the defaults of a session."""

from pathlib import Path

import pytest

from floodmark.spark.given_settings import choose_settings, read_given_settings, settings_of_arguments

DEFAULTS = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
LOCAL = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@pytest.mark.parametrize(
    ("given", "chosen", "left_out"),
    [
        ({}, {}, set()),
        ({"spark.master": "local[7]"}, {}, {"spark.master"}),
        ({"spark.ui.enabled": "true"}, {}, {"spark.ui.enabled"}),
        ({"spark.master": "spark://one:7077"}, {}, set(LOCAL)),
        ({"spark.master": "local-cluster[2,1,1024]"}, {}, set(LOCAL)),
        ({}, {"spark.master": "yarn"}, set(LOCAL)),
        ({"spark.driver.host": "driver.example"}, {}, {"spark.driver.host", "spark.driver.bindAddress"}),
        ({}, {"spark.driver.host": "driver.example"}, {"spark.driver.host", "spark.driver.bindAddress"}),
        ({"spark.remote": "sc://one"}, {}, {*LOCAL, "spark.ui.showConsoleProgress"}),
        ({"spark.sql.session.timeZone": "Asia/Tokyo"}, {}, {"spark.sql.session.timeZone"}),
    ],
)
def test_a_given_setting_replaces_a_default(given: dict[str, str], chosen: dict[str, str], left_out: set[str]) -> None:
    expected = {key: value for key, value in {**DEFAULTS, **LOCAL}.items() if key not in left_out}
    assert choose_settings(DEFAULTS, LOCAL, given, chosen) == {**expected, **chosen}


def test_the_program_wins_over_what_is_given() -> None:
    chosen = {"spark.ui.enabled": "false", "spark.master": "local[3]"}
    given = {"spark.ui.enabled": "true", "spark.master": "local[1]"}
    assert choose_settings(DEFAULTS, LOCAL, given, chosen) == {**DEFAULTS, **LOCAL, **chosen}


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ("pyspark-shell", {}),
        ("--master=yarn pyspark-shell", {"spark.master": "yarn"}),
        ("-c spark.a=1=2 --conf 'spark.b=x y' pyspark-shell", {"spark.a": "1=2", "spark.b": "x y"}),
        ("--conf=spark.a=1 --name orders pyspark-shell", {"spark.a": "1", "spark.app.name": "orders"}),
        ("--driver-java-options '-Xmx1g -Da=b'", {"spark.driver.extraJavaOptions": "-Xmx1g -Da=b"}),
        ("--remote sc://one:15002", {"spark.remote": "sc://one:15002"}),
    ],
)
def test_the_command_line_of_spark_submit(arguments: str, settings: dict[str, str]) -> None:
    assert settings_of_arguments(arguments) == settings


def test_a_command_line_wins_over_files_and_files_over_variables(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master spark://one:7077\nspark.ui.enabled true\n")
    environment = {"MASTER": "local[9]", "SPARK_LOCAL_IP": "10.0.0.1"}
    assert read_given_settings(environment, tmp_path) == {
        "spark.master": "spark://one:7077",
        "spark.driver.host": "10.0.0.1",
        "spark.ui.enabled": "true",
    }
    environment["PYSPARK_SUBMIT_ARGS"] = "--master local[1] pyspark-shell"
    assert read_given_settings(environment, tmp_path)["spark.master"] == "local[1]"


def test_another_directory_or_file_replaces_the_defaults_of_the_installation(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master=yarn")
    assert read_given_settings({"SPARK_CONF_DIR": str(tmp_path)}, tmp_path / "spark") == {"spark.master": "yarn"}
    (tmp_path / "ours.conf").write_text("spark.master: local[4]")
    arguments = f"--properties-file {tmp_path / 'ours.conf'} pyspark-shell"
    given = read_given_settings({"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": arguments}, tmp_path)
    assert given == {"spark.master": "local[4]"}


def test_a_file_that_is_missing_gives_nothing(tmp_path: Path) -> None:
    assert read_given_settings({"PYSPARK_SUBMIT_ARGS": "--properties-file nowhere.conf"}, tmp_path) == {}
