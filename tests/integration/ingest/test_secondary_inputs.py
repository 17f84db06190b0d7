"""Units that are read from PostgreSQL."""

import psycopg

from floodmark.ingest.job.options import Secret
from floodmark.ingest.job.unit import SecondaryInput
from floodmark.ingest.secondary_input import read_units
from floodmark.testing import PostgresServer


def test_units_come_from_postgresql_with_a_password_that_is_referred_to(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA crm")
        connection.execute('CREATE TABLE crm."Ids" (id INT, status TEXT, at TIMESTAMPTZ)')
        connection.execute("INSERT INTO crm.\"Ids\" VALUES (7, 'OK', '2020-01-01Z'), (8, NULL, NULL), (9, 'OK', NULL)")
    secret = Secret("env", "CRM_PASSWORD")
    secondary = SecondaryInput(("id",), url=url, password=secret, table="crm.Ids", filters={"status": "OK"})
    assert [unit.key for unit in read_units(secondary, {"CRM_PASSWORD": "any"})] == ['{"id":7}', '{"id":9}']
    query = "SELECT id::text AS id FROM crm.\"Ids\" WHERE status LIKE '%K' AND at IS NOT NULL"
    assert [unit.key for unit in read_units(SecondaryInput(("id",), url=url, query=query))] == ['{"id":"7"}']
