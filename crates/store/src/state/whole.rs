//! The state that all partitions of a volume read ([`Whole`]), and the first one's ([`Lead`]).

use super::{Lead, Store, Whole};

impl Store {
    /// The state that the first partition has for all. This is the first one.
    #[inline]
    pub(crate) fn leading(&self) -> &Lead {
        let lead = self.lead.as_ref();
        lead.expect("the first partition commits, and writes superblocks")
    }
}

/// Each partition may have a worker of its own.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Whole>();
};
