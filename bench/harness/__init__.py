"""The benchmark's own parts: what it fetches and builds, what it starts, what it measures, what it prints."""
