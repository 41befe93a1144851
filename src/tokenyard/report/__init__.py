"""What a person sees of a run: the result (`result`, `terminal`), the steps (`steps`), and in plain
sentences who waited and why (`waiting`)."""
