"""The durable short-term log: commits of many stores in one object, which all of them wait for together."""
