"""What each part of the design is worth, one idea removed at a time; see ../README.md."""
