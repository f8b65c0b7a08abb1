//! Sandboxes: that they work, that nothing gets out of them, that nothing is left of them. The numbers of groups in
//! comments are those of `docs/threat-model.md`.

mod basics;
mod escape;
mod groups;
mod life;
mod limits;
mod neighbours;
pub(crate) mod support;
mod user;
mod weaker;
