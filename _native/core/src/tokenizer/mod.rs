//! Text ↔ token ids.
