"""The version of the package, for those who save it beside data."""

VERSION = "0.1.0"
