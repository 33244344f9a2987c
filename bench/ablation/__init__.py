"""One idea removed at a time: what each part of the design is worth. README.md of the folder above says how to read it."""
