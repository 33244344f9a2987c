"""Programs of vector instructions, which know numbers and addresses and no framework."""
