"""Replay buffers as users see them, their checkpoints, the rate limiter and schedules."""
