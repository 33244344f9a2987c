"""Does it learn? Blind Cliffwalk from the paper, and learning curves against uniform replay."""
