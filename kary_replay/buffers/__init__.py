"""Replay buffers as users see them: their fields and errors, checkpoints, the rate of drawing, schedules."""
