"""The loop (`loop`), what executes its batches and how long they take (`step_time`, `presets`), and
the schedule log that it tells (`log`). Times are whole `ticks`."""
