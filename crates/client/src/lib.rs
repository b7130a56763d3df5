//! The public API of Adit.
