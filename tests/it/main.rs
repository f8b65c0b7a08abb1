//! x
mod guard_rules;
