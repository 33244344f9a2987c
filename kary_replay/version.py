"""The version of the package, in a module that checkpoints and pickles can import cheaply."""

VERSION = "0.1.0"
