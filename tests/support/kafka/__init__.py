"""Helpers of tests with a Kafka broker."""
