//! The volume's files as programs name them: by numbers and by paths.
//!
//! | module | |
//! |---|---|
//! | [`descriptors`] | numbers of the kernel with our open files behind them |
//! | [`position`] | where in its file a descriptor is, also in forked processes |
//! | [`path`] | which paths are the volume's; the working directory |
//! | [`canonical`] | paths without symbolic links |
//! | [`nowhere`] | the kernel's working directory, while ours is in the volume |
//! | [`sharing`] | before another process begins: what it has in common with this one |

pub(crate) mod canonical;
pub(crate) mod descriptors;
pub(crate) mod nowhere;
pub(crate) mod path;
pub(crate) mod position;
pub(crate) mod sharing;
